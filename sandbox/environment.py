"""What machine this is: the facts an Evaluation carries."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.compiler import find_compiler
from sandbox.evaluation import Environment
from sandbox.walls import Walls

if TYPE_CHECKING:
    from sandbox.device import Device


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


def describe_environment(walls: Walls, device: Device | None = None) -> Environment:
    """Facts of this machine and its device, with the walls that stand."""
    return Environment(
        cpu=cpu_name(), cores=len(usable_cpus()), arch=platform.machine(),
        kernel=platform.release(), compiler=find_compiler().version, torch=importlib.metadata.version("torch"),
        device=str(device) if device is not None else "", walls=tuple(walls.standing), missing_walls=tuple(f"{name}: {why}" for name, why in walls.missing),
    )  # fmt: skip
