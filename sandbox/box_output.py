"""Reading what a box prints, without letting it fill our memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


class Pump:
    """Reads a pipe to its end on a thread; keeps the first and the last part, and speaks up past the cap."""

    def __init__(self, fd: int, cap: int, on_flood: Callable[[], None]) -> None:
        self._fd, self._cap, self._on_flood = fd, cap, on_flood
        self._head, self._tail, self.total = bytearray(), bytearray(), 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="box-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        told = False
        while data := self._next():
            with self._lock:
                self.total += len(data)
                room = max(0, self._cap // 2 - len(self._head))
                self._head += data[:room]
                self._tail += data[room:]
                del self._tail[: max(0, len(self._tail) - self._cap // 2)]
            if self.total > self._cap and not told:
                told = True
                self._on_flood()

    def _next(self) -> bytes:
        try:
            return os.read(self._fd, 1 << 16)
        except OSError:
            return b""

    def bytes(self) -> bytes:
        """What was kept so far, with a mark where something was left out."""
        with self._lock:
            kept = len(self._head) + len(self._tail)
            gap = f"\n... {self.total - kept} bytes left out ...\n".encode() if self.total > kept else b""
            return bytes(self._head) + gap + bytes(self._tail)

    def join(self, seconds: float = 2.0) -> None:
        """Wait for the end of the pipe."""
        self._thread.join(seconds)
