"""The wire to a child in a box: JSON lines, deadlines, a clock, and a name for every failure."""

from __future__ import annotations

import json
import os
import secrets
import select
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox.box_errors import (
    BoxError,
    ChildCrashed,
    ChildError,
    ChildHung,
    ChildLimit,
    ChildProtocolError,
    ChildRaised,
    ChildRefused,
)
from sandbox.box_output import Pump
from sandbox.isolation import Box

HELLO = "kernelbraid-child-1"
_MAX_REPLY = 16 << 20


class Wire:
    """Owns the box. Any failure but a refusal kills everything in it."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.hello: dict[str, Any] = {}
        self._log: Pump | None = None
        self._rest = b""
        self._commands = self._replies = -1

    def start(self, command: Sequence[str], timeout: float) -> None:
        """Start the command in the box and wait for its greeting."""
        process = self.box.popen(command, stdin=True)
        assert process.stdin and process.stdout and process.stderr
        self._commands, self._replies = process.stdin.fileno(), process.stdout.fileno()
        cap = self.box.limits.output_bytes
        self._log = Pump(process.stderr.fileno(), cap, lambda: self.box.kill("output"))
        os.set_blocking(self._replies, False)
        os.set_blocking(self._commands, False)
        hello = self._parsed(self._line("start", timeout))
        if hello.get("hello") != HELLO:
            raise self.broken(f"the child greets with {str(hello)[:200]}, not {HELLO}")
        self.hello = hello
        self.box.joined = True

    @property
    def log(self) -> str:
        """What the child printed: the first and the last part of it."""
        return self._log.bytes().decode(errors="replace") if self._log else ""

    def close(self) -> None:
        """End everything; the box is removed."""
        try:
            self.box.kill()
            if self._log is not None:
                self._log.join()  # before its pipe is closed, or it would read another file of that number
        finally:
            self.box.close()

    def exchange(self, do: str, timeout: float | None, fields: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """(reply, ns from just before the first byte is written until the last byte is read)."""
        allowed = self.box.wall_left() if timeout is None else timeout
        identity = secrets.token_hex(8)
        data = json.dumps({"do": do, "id": identity, **fields}).encode() + b"\n"
        if self._rest or self._spoke_early():
            raise self.broken("the child wrote an answer before it was asked")
        begin = time.monotonic_ns()
        self._send(do, data, allowed)
        line = self._line(do, allowed)
        span = time.monotonic_ns() - begin
        reply = self._parsed(line)
        if reply.get("id") != identity or self._rest:
            raise self.broken(f"the answer to '{do}' does not carry its id, or more follows it")
        if not reply["ok"]:
            error = str(reply.get("error", ""))[-2000:].encode(errors="replace").decode()  # no lone surrogates: records refuse them
            if reply.get("kind") == "raised":
                raise ChildRaised(error, self.log)
            if reply.get("kind") == "refused":
                raise ChildRefused(error, self.log)
            raise ChildProtocolError(f"the child did not understand '{do}': {error}", self.log)
        return reply, span

    def broken(self, message: str) -> ChildProtocolError:
        """Kill the child; the error to raise."""
        self.box.kill()
        return ChildProtocolError(message, self.log)

    def _ended(self) -> ChildError | BoxError:
        """Why the pipe closed."""
        by_itself = self.box.wait(2.0)
        self.box.kill()
        if self._log is not None:
            self._log.join()
        report, log = self.box.report(), self.log
        if report.limit is not None:
            return ChildLimit(report.limit, log)
        if not by_itself:
            return ChildProtocolError("the child closed its reply pipe and stayed alive", log)
        if not self.hello:
            return BoxError(f"the child did not start (exit code {report.exit_code}): {log.strip()[-500:]}")
        return ChildCrashed(report.signal, report.exit_code, log)

    def _spoke_early(self) -> bool:
        """Whether bytes wait in the reply pipe; raises if it has ended."""
        try:
            if os.read(self._replies, 1):
                return True
        except BlockingIOError:
            return False
        raise self._ended()

    def _wait_for(self, fd: int, events: int, deadline: float, what: str, allowed: float) -> None:
        poll = select.poll()
        poll.register(fd, events)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self.box.kill("wall")
            raise ChildHung(what, allowed, self.log)

    def _send(self, what: str, data: bytes, timeout: float) -> None:
        deadline, rest = time.monotonic() + timeout, memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._commands, rest) :]
            except BlockingIOError:
                self._wait_for(self._commands, select.POLLOUT, deadline, what, timeout)
            except BrokenPipeError:
                raise self._ended() from None

    def _line(self, what: str, timeout: float) -> bytes:
        allowed = max(0.0, min(timeout, self.box.wall_left()))
        deadline = time.monotonic() + allowed
        while b"\n" not in self._rest:
            self._wait_for(self._replies, select.POLLIN, deadline, what, allowed)
            try:
                data = os.read(self._replies, 1 << 20)
            except BlockingIOError:
                continue
            if not data:
                raise self._ended()
            self._rest += data
            if len(self._rest) > _MAX_REPLY:
                raise self.broken(f"the answer to '{what}' is longer than {_MAX_REPLY} bytes")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            raise self.broken(f"the child answered something that is not JSON: {line[:200]!r}") from None
        if not isinstance(reply, dict) or not isinstance(reply.get("ok"), bool):
            raise self.broken(f"the child answered {line[:200]!r}, which has no 'ok'")
        return reply
