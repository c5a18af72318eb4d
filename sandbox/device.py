"""GPUs of this machine: what they are, what they do right now, and what a box must see of them.

Everything is read with nvidia-smi, in its own process and with a deadline; where it is missing or answers nothing there is no
GPU, and never an exception.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from sandbox.records import Frozen

SMI_TIMEOUT_S = 20.0
_WHAT = ("index", "uuid", "name", "driver_version", "memory.total")
_NOW = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "utilization.gpu", "clocks_event_reasons.active")


class Device(Frozen):
    """One GPU. `index` is nvidia-smi's and names its device node."""

    index: int
    uuid: str
    name: str
    driver: str
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.name}, driver {self.driver}"


class DeviceFacts(Frozen):
    """What a GPU did at one moment; None where nvidia-smi does not say. `others`: pids of compute processes on it."""

    when: str
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    utilisation: float | None = None
    throttle_reasons: str = ""
    others: tuple[int, ...] = ()


def _query(arguments: list[str]) -> list[list[str]]:
    """Rows of nvidia-smi's answer; none if there is no answer."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments, "--format=csv,noheader,nounits"], capture_output=True, text=True,
                              timeout=SMI_TIMEOUT_S, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def devices() -> list[Device]:
    """All GPUs, in nvidia-smi's order."""
    found = []
    for row in _query([f"--query-gpu={','.join(_WHAT)}"]):
        if len(row) == len(_WHAT) and row[0].isdigit():
            found.append(Device(index=int(row[0]), uuid=row[1], name=row[2], driver=row[3], memory_bytes=int(_number(row[4]) or 0) << 20))
    return found


def read_facts(device: Device, when: str = "") -> DeviceFacts:
    """Clocks, power, temperature and who else computes there, now."""
    rows = _query([f"--query-gpu={','.join(_NOW)}", f"--id={device.uuid}"])
    row = rows[0] if rows and len(rows[0]) == len(_NOW) else [""] * len(_NOW)
    numbers = [_number(cell) for cell in row[:5]]
    users = _query(["--query-compute-apps=pid", f"--id={device.uuid}"])
    return DeviceFacts(when=when, sm_mhz=numbers[0], memory_mhz=numbers[1], watts=numbers[2], celsius=numbers[3], utilisation=numbers[4],
                       throttle_reasons=row[5], others=tuple(int(u[0]) for u in users if u and u[0].isdigit()))  # fmt: skip


def device_nodes(device: Device) -> list[Path]:
    """The device nodes that a CUDA process needs. nvidia-uvm-tools only where it is there."""
    names = [f"nvidia{device.index}", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    return [path for path in (Path("/dev") / name for name in names) if path.exists()]


def driver_folders() -> list[Path]:
    """Folders that hold the driver's libcuda.so.1, as the loader knows them or at the places that containers use."""
    places = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    try:
        listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False).stdout
        places += [Path(p).parent for p in re.findall(r"libcuda\.so\.1 .*=> (\S+)", listed)]
    except (OSError, subprocess.TimeoutExpired):
        pass
    places += [Path("/usr/local/nvidia/lib64"), Path("/usr/local/nvidia/lib")]
    return list(dict.fromkeys(p.resolve() for p in places if (p / "libcuda.so.1").exists()))
