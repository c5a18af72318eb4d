"""What machine this is: the facts an Evaluation carries."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from sandbox.compiler import find_compiler
from sandbox.evaluation import Environment
from sandbox.walls import Walls


def cpu_name() -> str:
    """Model name as the kernel gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def usable_cpus() -> list[int]:
    """CPUs this process may run on."""
    return sorted(os.sched_getaffinity(0))


def describe_environment(walls: Walls) -> Environment:
    """Facts of this machine, with the walls that stand."""
    return Environment(
        cpu=cpu_name(), cores=len(usable_cpus()), arch=platform.machine(),
        kernel=platform.release(), compiler=find_compiler().version, torch=importlib.metadata.version("torch"),
        walls=tuple(walls.standing), missing_walls=tuple(f"{name}: {why}" for name, why in walls.missing),
    )  # fmt: skip
