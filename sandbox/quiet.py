"""Quiet: while one evaluation is timed on a set of CPUs or a GPU, nothing else of ours works there.

Locks are the kernel's (flock on one file per CPU), so a dead owner cannot hold one, and they hold across processes, Ray
workers and campaigns of one machine. `working` is shared, `timing` exclusive; a gate beside each lock keeps a stream of
workers from starving whoever wants to time. What other programs do on the machine is not ours to stop: the load average in
every Evaluation says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sandbox.device_lock import announced, to_stderr
from sandbox.errors import UnavailableError


def lock_folder() -> Path:
    """Where the lock files are: one place per machine, writable by every user of it."""
    folder = Path(tempfile.gettempdir()) / "kernelbraid-cpus"
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    return folder


def _open(path: Path) -> int:
    """A descriptor for a lock file of anybody: opened without O_CREAT first, which sticky folders refuse for files of others."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.fchmod(made, 0o644)
            return made
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f"cannot lock a CPU for timing: {error}; remove {path.parent} if nobody uses it") from error


def _take(fd: int, mode: int, blocked: Callable[[int], None]) -> None:
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        blocked(fd)
        fcntl.flock(fd, mode)  # the kernel keeps the queue, and lets go for the dead


@contextlib.contextmanager
def _held(what: Sequence[int | str], mode: int, blocked: Callable[[int], None] = lambda fd: None) -> Iterator[None]:
    """The locks of these CPUs or devices in ascending order, so that two holders never wait for each other.

    blocked is called with the descriptor of a lock that somebody else has, before we wait for it."""
    folder = lock_folder()
    with contextlib.ExitStack() as stack:
        for name in sorted(set(what)):
            gate, lock = (_open(folder / f"{name}.{kind}") for kind in ("gate", "lock"))
            stack.callback(os.close, lock)
            try:
                _take(gate, fcntl.LOCK_EX, blocked)
                _take(lock, mode, blocked)
            finally:
                if mode == fcntl.LOCK_EX:
                    stack.callback(os.close, gate)  # held to the end: workers queue behind whoever times
                else:
                    os.close(gate)
        yield


def working(cpus: Sequence[int]) -> contextlib.AbstractContextManager[None]:
    """Work on these CPUs beside others, never while somebody times there. Not reentrant with `timing`."""
    return _held(cpus, fcntl.LOCK_SH)


def timing(cpus: Sequence[int]) -> contextlib.AbstractContextManager[None]:
    """These CPUs for oneself, to time on them."""
    return _held(cpus, fcntl.LOCK_EX)


@contextlib.contextmanager
def on_device(uuid: str, say: Callable[[str], None] = to_stderr) -> Iterator[float]:
    """A GPU for oneself: what is judged on it shares it with nothing of ours. Not reentrant.

    Yields the seconds spent waiting: they are nobody's work. Meanwhile `say` is told who holds the device, at once and then
    every half minute.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        with announced(f"GPU {uuid}", say) as blocked:
            stack.enter_context(_held([uuid], fcntl.LOCK_EX, blocked))
        yield time.monotonic() - began


@contextlib.contextmanager
def on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """The calling thread, and what it starts, on these CPUs only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
