"""Control groups for one box: memory and process count, under our own group, v1 or v2."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

PREFIX = "kernelbraid-"


@dataclass(frozen=True)
class CgroupRoots:
    """Folders under which we may make groups. On v2 both are the same folder."""

    memory: Path | None
    pids: Path | None
    unified: bool = False


def _mounts() -> list[tuple[str, str, set[str]]]:
    """(kind, mount point, v1 controllers) of every cgroup mount."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            found.append((kind, left.split(" ")[4], set(options.split(","))))
    return found


def _unified_root(own: Path) -> Path | None:
    """Where v2 groups with memory and pids can be made: below our own group, or beside it when that is free.

    v2 refuses controllers below a group that itself has processes; then the group beside ours will do, but
    only if our own group sets no limit that we would thereby escape.
    """
    wanted = {"memory", "pids"}
    control = own / "cgroup.subtree_control"
    try:
        if not wanted <= set(control.read_text().split()):
            control.write_text("+memory +pids")
        return own
    except OSError:
        pass
    try:
        free = all((own / name).read_text().strip() == "max" for name in ("memory.max", "pids.max"))
        if free and wanted <= set((own.parent / "cgroup.subtree_control").read_text().split()):
            return own.parent
    except OSError:
        pass
    return None


def find_roots() -> CgroupRoots:
    """The groups of this process, per controller; None where there is none or it is not writable."""
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path.lstrip("/")
    memory = pids = None
    for kind, point, controllers_here in _mounts():
        if kind == "cgroup":
            if "memory" in controllers_here and "memory" in paths:
                memory = Path(point) / paths["memory"]
            if "pids" in controllers_here and "pids" in paths:
                pids = Path(point) / paths["pids"]
        elif "" in paths and (Path(point) / paths[""] / "cgroup.controllers").exists():
            own = Path(point) / paths[""]
            if {"memory", "pids"} <= set((own / "cgroup.controllers").read_text().split()):
                root = _unified_root(own)
                if root is not None:
                    return CgroupRoots(root, root, unified=True)
    usable = [p if p is not None and os.access(p, os.W_OK) else None for p in (memory, pids)]
    return CgroupRoots(usable[0], usable[1])


class Cgroup:
    """The groups of one box. Create, join by writing to `join_files`, kill, read the counters, close."""

    def __init__(self, roots: CgroupRoots, name: str, memory_bytes: int, processes: int) -> None:
        self.unified = roots.unified
        self.memory = roots.memory / (PREFIX + name) if roots.memory else None
        self.pids = roots.pids / (PREFIX + name) if roots.pids else None
        try:
            for folder in self.folders:
                folder.mkdir()
            if self.memory:
                limit = "memory.max" if self.unified else "memory.limit_in_bytes"
                (self.memory / limit).write_text(str(memory_bytes))
                # no swap beside the limit; absent where the kernel does not account swap
                extras = {
                    "memory.swap.max": 0,
                    "memory.memsw.limit_in_bytes": memory_bytes,
                    "memory.oom.group": 1,
                }
                for file, value in extras.items():
                    if (self.memory / file).exists():
                        (self.memory / file).write_text(str(value))
            if self.pids:
                (self.pids / "pids.max").write_text(str(processes))
        except OSError:
            self.close()
            raise

    @property
    def folders(self) -> list[Path]:
        """Distinct group folders, to be noted for the janitor."""
        return list(dict.fromkeys(p for p in (self.memory, self.pids) if p))

    @property
    def join_files(self) -> list[str]:
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def _counter(self, folder: Path | None, file: str, key: str) -> int:
        if folder is None:
            return 0
        try:
            for line in (folder / file).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
        except OSError:
            pass
        return 0

    def oom_kills(self) -> int:
        """How many processes the kernel ended for memory."""
        file = "memory.events" if self.unified else "memory.oom_control"
        return self._counter(self.memory, file, "oom_kill")

    def fork_refusals(self) -> int:
        """How many forks or thread starts were refused."""
        return self._counter(self.pids, "pids.events", "max")

    def peak_bytes(self) -> int | None:
        """Highest memory use, page cache included, or None where it is not counted."""
        if self.memory is None:
            return None
        try:
            file = "memory.peak" if self.unified else "memory.max_usage_in_bytes"
            return int((self.memory / file).read_text())
        except OSError:
            return None

    def members(self) -> set[int]:
        """Process ids in the groups now."""
        return set().union(*(members(folder) for folder in self.folders)) if self.folders else set()

    def kill(self) -> bool:
        """End every member; True when none is left."""
        emptied = [kill_members(folder) for folder in self.folders]
        return all(emptied)

    def close(self) -> None:
        """Remove the groups; they must be empty (call kill first)."""
        for folder in self.folders:
            remove_group(folder)


def members(folder: Path) -> set[int]:
    """Process ids in one group; empty when it is gone."""
    try:
        return {int(word) for word in (folder / "cgroup.procs").read_text().split()} - {0}
    except OSError:
        return set()


def kill_members(folder: Path, seconds: float = 5.0) -> bool:
    """SIGKILL all of a group until none is left. True if it is empty at the end."""
    with contextlib.suppress(OSError):
        (folder / "cgroup.kill").write_text("1")
    if members(folder):
        with contextlib.suppress(OSError):
            (folder / "pids.max").write_text("0")  # no new members while we walk through them
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while seen := members(folder):
        handles = []
        for pid in seen:
            try:
                handles.append((pid, os.pidfd_open(pid)))
            except OSError:
                continue
        # a pid that is a member before and after its handle was opened is surely ours, not a recycled number
        still = members(folder)
        for pid, handle in handles:
            if pid in still:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        if time.monotonic() > deadline:
            return not members(folder)
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True


def remove_group(folder: Path) -> bool:
    """Remove an empty group. A group stays busy for a moment after its last process; True when it is gone."""
    for attempt in range(60):
        try:
            folder.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(min(0.0005 * 2**attempt, 0.05))
    return False
