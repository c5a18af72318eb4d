"""Walls are probed by their effect, reported by name, and can be left out."""

from __future__ import annotations

import platform
import struct

import pytest

from sandbox import seccomp, walls
from sandbox.box_errors import NoWallsError
from sandbox.isolation import Limits, open_box
from sandbox.walls import WALLS, Level, probe_walls

LIMITS = Limits(wall_s=10, cpu_s=10, memory_bytes=256 << 20, processes=16)


def needs(level: Level) -> walls.Walls:
    """The walls of a level, or skip where this machine has them not."""
    try:
        return probe_walls(level=level)
    except NoWallsError as error:
        pytest.skip(str(error))


def test_every_wall_is_either_standing_or_missing_with_a_reason() -> None:
    found = probe_walls(unsafe=True)
    missing = dict(found.missing)
    assert sorted([*found.standing, *missing]) == sorted(WALLS)
    assert all(missing.values())
    assert found.describe() == {
        "level": found.level.value,
        "standing": list(found.standing),
        "missing": missing,
    }


@pytest.mark.parametrize("name", WALLS)
def test_a_wall_left_out_is_reported_and_the_level_follows(name: str) -> None:
    full = probe_walls(unsafe=True)
    found = probe_walls(without=[name], unsafe=True)
    assert not found.has(name)
    assert dict(found.missing)[name]
    if name == "bwrap":
        assert found.level in (Level.NAMESPACES, Level.UID, Level.NONE)
        assert not found.has("seccomp"), "the filter is handed to bwrap"
    if name.startswith("cgroup") and full.level is Level.BWRAP_CGROUP:
        assert found.level is Level.BWRAP


def test_walls_left_out_one_after_the_other_weaken_the_level() -> None:
    if probe_walls(unsafe=True).level is not Level.BWRAP_CGROUP:
        pytest.skip("not all walls stand here")
    order = [
        ("cgroup-pids", Level.BWRAP),
        ("bwrap", Level.NAMESPACES),
        ("namespaces", Level.UID),
        ("unprivileged-uid", Level.NONE),
    ]
    gone: list[str] = []
    for name, expected in order:
        if name == "namespaces" and not probe_walls().has("unprivileged-uid"):
            expected = Level.NONE
        gone.append(name)
        assert probe_walls(without=gone, unsafe=True).level is expected


def test_no_wall_at_all_is_refused_unless_told_otherwise() -> None:
    bare = ["bwrap", "namespaces", "unprivileged-uid"]
    with pytest.raises(NoWallsError, match="unsafe=True"):
        probe_walls(without=bare)
    with pytest.raises(NoWallsError):
        probe_walls(level=Level.NONE)
    assert probe_walls(without=bare, unsafe=True).level is Level.NONE


def test_an_unknown_wall_is_named() -> None:
    with pytest.raises(NoWallsError, match="moat"):
        probe_walls(without=["moat"])


def test_a_level_that_does_not_stand_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walls, "_bwrap", lambda: (None, "gone for this test"))
    with pytest.raises(NoWallsError, match="gone for this test"):
        probe_walls(level=Level.BWRAP_CGROUP)


def test_a_broken_bwrap_is_no_wall(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program called bwrap that walls nothing off must not pass the probe."""
    import pathlib

    fake = pathlib.Path(str(tmp_path)) / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    walls._bwrap.cache_clear()
    try:
        path, why = walls._bwrap()
        assert path is None
        assert "does not run here" in why
    finally:
        monkeypatch.undo()
        walls._bwrap.cache_clear()


def test_the_filter_is_well_formed_for_both_machines() -> None:
    for machine in ("x86_64", "aarch64"):
        program = seccomp.filter_program(machine)
        assert program is not None
        count = len(program) // 8
        assert len(program) == 8 * count
        assert count < 4096
        for index in range(count):
            code, yes, no, _ = struct.unpack_from("<HBBI", program, 8 * index)
            if code & 7 == 5:  # a jump stays inside the program
                assert index + 1 + max(yes, no) < count
        assert struct.unpack_from("<HBBI", program, 8 * (count - 1))[0] == 6, "the last one returns"
    assert seccomp.filter_program("pdp11") is None


def test_forbidden_calls_fail_and_ordinary_ones_do_not() -> None:
    full = probe_walls()
    if not full.has("seccomp"):
        pytest.skip(dict(full.missing)["seccomp"])
    numbers = {"x86_64": (321, 101, 250, 298), "aarch64": (280, 117, 219, 241)}[platform.machine()]
    calls = "".join(f"long r{n} = syscall({n}, 0, 0, 0, 0, 0); bad |= !(r{n} == -1 && errno == EPERM);" for n in numbers)
    source = (
        "#include <unistd.h>\n#include <sys/syscall.h>\n#include <errno.h>\n#include <thread>\n"
        f"int main() {{ int bad = 0; {calls} std::thread([]{{}}).join(); return bad; }}"
    )
    with open_box(LIMITS, full) as box:
        shown = box.put("calls.cpp", source.encode())
        built = box.run(["/bin/sh", "-c", f"g++ -pthread {shown} -o /box/calls && /box/calls"])
    assert built.report.exit_code == 0, built.stderr


@pytest.mark.parametrize("level", [Level.BWRAP_CGROUP, Level.BWRAP, Level.NAMESPACES, Level.UID])
def test_every_level_runs_a_command_as_somebody_else(level: Level) -> None:
    with open_box(LIMITS, needs(level)) as box:
        result = box.run(["/bin/sh", "-c", "id -u; env | sort"])
    lines = result.stdout.decode().split()
    assert lines[0] != "0" or not probe_walls().has("unprivileged-uid")
    names = {line.partition("=")[0] for line in lines[1:]}
    assert names <= {"HOME", "LANG", "PATH", "PWD", "TMPDIR"}
