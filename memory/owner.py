"""Who may write a memory folder: one process at a time, by a lock that ends with the process."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from memory.errors import MemoryBusy

LOCK = "owner.lock"
CARD = "owner.json"  # beside the lock, for people: the lock alone decides


def owner_pid(folder: Path) -> int | None:
    """Process that says it owns the folder and is alive on this host, as far as can be seen without the lock."""
    try:
        card = json.loads((folder / CARD).read_text())
        pid = int(card["pid"])
        if card["host"] != socket.gethostname():
            return pid
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid


class Ownership:
    """The right to write a folder, from building it to `release` (or the end of the process).

    Does not wait: raises MemoryBusy naming the owner."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = FileLock(folder / LOCK, thread_local=False)  # an actor may close in another thread than it opened in
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            pid = owner_pid(folder)
            who = f"process {pid}" if pid else "another process"
            raise MemoryBusy(
                f"the memory in {folder} is owned by {who}; wait for it or stop it, or read only (list, show and search do)"
            ) from None
        (folder / CARD).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}) + "\n")

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if self._lock.is_locked:
            (self._folder / CARD).unlink(missing_ok=True)
            self._lock.release()
