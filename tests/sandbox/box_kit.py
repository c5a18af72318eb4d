"""Levels, limits and Python programs in boxes: shared by the tests of the box."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from sandbox.box_errors import NoWallsError
from sandbox.box_python import python_command
from sandbox.isolation import BoxResult, Limits, open_box
from sandbox.walls import Level, Walls, probe_walls

LIMITS = Limits(wall_s=10, cpu_s=20, memory_bytes=256 << 20, processes=24, file_bytes=32 << 20, output_bytes=64 << 10)
LEVELS = [Level.BWRAP_CGROUP, Level.BWRAP, Level.NAMESPACES, Level.UID]
WITH_FILES_WALL = LEVELS[:3]


def walls_of(level: Level) -> Walls:
    """The walls of a level, or skip where this machine has them not."""
    try:
        return probe_walls(level=level)
    except NoWallsError as error:
        pytest.skip(str(error))


def python(walls: Walls, code: str, limits: Limits = LIMITS) -> BoxResult:
    """Run a Python text in a fresh box."""
    interpreter, binds = python_command(walls)
    with open_box(limits, walls, readonly=binds) as box:
        result = box.run([interpreter, "-I", "-S", "-c", textwrap.dedent(code)])
        assert not list(box.scratch.parent.glob("*.pid"))
    assert not box.scratch.exists()
    return result


def alive_with(mark: str) -> list[int]:
    """Processes of this machine whose command line holds the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]
