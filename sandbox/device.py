"""GPUs of this machine: what they are, what they do right now, and what a box must see of them.

Everything is read with nvidia-smi, in its own process and with a deadline; where it is missing or answers nothing there is no
GPU, and never an exception.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

from sandbox.records import Frozen

SMI_TIMEOUT_S = 20.0
_WHAT = ("index", "uuid", "name", "driver_version", "memory.total")
_NOW = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "utilization.gpu")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the second is what drivers before 535 call it
_REASON_BITS = ("idle", "application_clocks", "software_power_cap", "hardware_slowdown", "sync_boost", "software_thermal",
                "hardware_thermal", "hardware_power_brake", "display_clocks")  # fmt: skip
_GPUS = Path("/proc/driver/nvidia/gpus")  # the driver's own list, with the number of each device node
_CONTAINER_FOLDERS = (Path("/usr/local/nvidia/lib64"), Path("/usr/local/nvidia/lib"))


class Device(Frozen):
    """One GPU. `index` is nvidia-smi's. l2_bytes is None until a preflight asked the driver: nvidia-smi does not know it."""

    index: int
    uuid: str
    name: str
    driver: str
    memory_bytes: int
    l2_bytes: int | None = None

    def __str__(self) -> str:
        return f"{self.name}, driver {self.driver}"


class DeviceFacts(Frozen):
    """What a GPU did at one moment: MHz, W, degrees Celsius, percent. None where nvidia-smi does not say.

    throttle_reasons: why its clocks are lower than they could be ("idle" among them). others: pids of compute processes on it
    that are not this one, as nvidia-smi numbers them; a machine may hide them from a container. how: how this was read.
    """

    when: str
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    utilisation: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    others: tuple[int, ...] | None = None
    how: str = ""


def _query(arguments: list[str]) -> list[list[str]] | None:
    """Rows of nvidia-smi's answer; None if there is no answer."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments, "--format=csv,noheader,nounits"], capture_output=True, text=True,
                              errors="replace", timeout=SMI_TIMEOUT_S, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def devices() -> list[Device]:
    """All GPUs, in nvidia-smi's order."""
    found = []
    for row in _query([f"--query-gpu={','.join(_WHAT)}"]) or []:
        if len(row) == len(_WHAT) and row[0].isdigit():
            found.append(Device(index=int(row[0]), uuid=row[1], name=row[2], driver=row[3], memory_bytes=int(_number(row[4]) or 0) << 20))
    return found


def throttle_reasons(mask: str) -> tuple[str, ...] | None:
    """Names of the bits that nvidia-smi prints as one hexadecimal number; None if it is no number."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return None
    names = [name for number, name in enumerate(_REASON_BITS) if bits >> number & 1]
    rest = bits >> len(_REASON_BITS) << len(_REASON_BITS)
    return (*names, *([hex(rest)] if rest else []))


def read_facts(device: Device, when: str = "", ours: Collection[int] = ()) -> DeviceFacts:
    """Clocks, power, temperature and who else computes there, now. ours: pids that are no strangers, beside this process."""
    began = time.monotonic()
    row, asked = None, ""
    for asked in _REASONS:  # an unknown field makes nvidia-smi refuse the whole question
        rows = _query([f"--query-gpu={','.join((*_NOW, asked))}", f"--id={device.uuid}"])
        if rows and len(rows[0]) == len(_NOW) + 1:
            row = rows[0]
            break
    users = _query(["--query-compute-apps=pid", f"--id={device.uuid}"])
    took = time.monotonic() - began
    numbers = [_number(cell) for cell in row[: len(_NOW)]] if row else [None] * len(_NOW)
    mine = {os.getpid(), *ours}
    others = None if users is None else tuple(int(u[0]) for u in users if u[0].isdigit() and int(u[0]) not in mine)
    how = f"nvidia-smi, {asked}, in {took:.2f} s" if row else f"nvidia-smi did not answer, in {took:.2f} s"
    return DeviceFacts(when=when, sm_mhz=numbers[0], memory_mhz=numbers[1], watts=numbers[2], celsius=numbers[3], utilisation=numbers[4],
                       throttle_reasons=throttle_reasons(row[-1]) if row else None, others=others, how=how)  # fmt: skip


def _minor(device: Device) -> int:
    """The number of the device's node: the driver's own word, for in a container with some GPUs of many it is not the index."""
    try:
        for entry in sorted(_GPUS.iterdir()):
            said = (entry / "information").read_text(errors="replace")
            number = re.search(r"^Device Minor:\s*(\d+)", said, re.MULTILINE)
            if number and re.search(rf"^GPU UUID:\s*{re.escape(device.uuid)}\s*$", said, re.MULTILINE):
                return int(number[1])
    except OSError:
        pass
    return device.index


def required_nodes(device: Device) -> list[Path]:
    """The device nodes without which no CUDA process can use this device, whether they are there or not."""
    return [Path("/dev") / name for name in (f"nvidia{_minor(device)}", "nvidiactl", "nvidia-uvm")]


def device_nodes(device: Device) -> list[Path]:
    """The device nodes that a box must see, as far as they are there: the required ones, and nvidia-uvm-tools for profilers."""
    return [path for path in (*required_nodes(device), Path("/dev/nvidia-uvm-tools")) if path.exists()]


def driver_folders() -> list[Path]:
    """Folders that hold the driver's libcuda.so.1, as the loader knows them or at the places that containers use."""
    places = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    try:
        listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False).stdout
        # "libc6," begins the name of every 64-bit kind; a 32-bit driver is of no use
        places += [Path(p).parent for p in re.findall(r"libcuda\.so\.1 \(libc6,[^)]*\) => (\S+)", listed)]
    except (OSError, subprocess.TimeoutExpired):
        pass
    places += _CONTAINER_FOLDERS
    return list(dict.fromkeys(p.resolve() for p in places if (p / "libcuda.so.1").exists()))
