"""Ending processes we started, by handle, and waiting until they are gone."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Direct children of a process (of its main thread, which is all that our launchers have)."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def end_and_wait(pids: list[int], seconds: float = 5.0) -> bool:
    """SIGKILL each and wait until it is gone; True if all are.

    A pid namespace is empty once its pid 1 is gone.
    """
    deadline = time.monotonic() + seconds
    gone = True
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            gone = bool(select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]) and gone
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)
    return gone


def _of_uid(uid: int) -> list[int]:
    """Processes whose folder in /proc belongs to the uid, zombies left out."""
    found = []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                state = Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in ("Z", "X"):
                    found.append(int(entry.name))
        except (OSError, IndexError):
            continue
    return found


def end_uid(uid: int, seconds: float = 5.0) -> bool:
    """SIGKILL every process of a uid that belongs to one box alone, until none is left."""
    deadline = time.monotonic() + seconds
    while pids := _of_uid(uid):
        end_and_wait(pids, 0.2)
        if time.monotonic() > deadline:
            return False
    return True
