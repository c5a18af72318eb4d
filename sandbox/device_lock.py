"""Waiting aloud for a kernel lock: who holds it, and that we still wait."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

AGAIN_S = 30.0


def to_stderr(text: str) -> None:
    """Where a message goes if nobody asked for it."""
    print(text, file=sys.stderr, flush=True)


def holder(fd: int) -> int | None:
    """The pid that holds a flock on this file, or None: not held, or by a process that we cannot see."""
    status = os.fstat(fd)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # "7: FLOCK ADVISORY WRITE 4711 fd:01:12345 0 EOF"; a waiter's line has an arrow at the second place
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted and int(words[4]) > 0:
                return int(words[4])
    return None


@contextlib.contextmanager
def announced(what: str, say: Callable[[str], None], again_s: float = AGAIN_S) -> Iterator[Callable[[int], None]]:
    """Yields `blocked(fd)`: call it before waiting for a lock. `say` then hears of it now and every again_s, until this ends."""
    got = threading.Event()
    threads: list[threading.Thread] = []
    began = time.monotonic()

    def repeat(fd: int) -> None:
        while not got.wait(again_s):
            say(f"still waiting for {what} after {time.monotonic() - began:.0f} s{_by(holder(fd))}")

    def blocked(fd: int) -> None:
        say(f"waiting for {what}{_by(holder(fd))}")
        if not threads:
            threads.append(threading.Thread(target=repeat, args=(fd,), name="lock-announcer", daemon=True))
            threads[0].start()

    try:
        yield blocked
    finally:
        got.set()
        for thread in threads:
            thread.join()  # before the lock's descriptor can be closed


def _by(pid: int | None) -> str:
    return f": process {pid} uses it" if pid is not None else ""
