"""The agents' side of the judge's socket. `JudgeClient(path).submit(candidate, problem, size)` gives the judge's record."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sandbox.candidate import Candidate
from sandbox.errors import KernelbraidError, UnavailableError
from sandbox.evaluation import Evaluation
from sandbox.judge_wire import (
    MAX_ANSWER,
    Ask,
    FrameError,
    Judged,
    Ping,
    Pong,
    RefusalKind,
    Refused,
    Submit,
    Waiting,
    read_reply,
    receive,
    send,
)

ANSWER_S = 30.0  # for whatever needs no judging
Reply = Pong | Waiting | Judged | Refused
T = TypeVar("T", Pong, Waiting, Judged)


class JudgeRefused(KernelbraidError):
    """The judge said no, in one sentence; `kind` is one of RefusalKind."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(f"the judge refused ({kind}): {reason}")
        self.kind, self.reason = kind, reason

    def __reduce__(self) -> tuple[type[JudgeRefused], tuple[RefusalKind, str]]:
        """Errors cross processes by pickle, which calls the class with `args`: those are the message here."""
        return type(self), (self.kind, self.reason)


def connect(connection: socket.socket, path: Path, seconds: float = ANSWER_S) -> None:
    """Connect, and wait where more clients knock than the server has let in yet. Raises OSError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connection.connect(str(path))
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class JudgeClient:
    """Talks to one judge; a connection for each question. `agent` is a name for the judge's log."""

    def __init__(self, path: Path, agent: str = "", patience_s: float = 4 * 3600.0) -> None:
        """path: the judge's socket. patience_s: how long a submission may take, waiting for its turn included."""
        self.path, self.agent, self.patience_s = path, agent, patience_s

    def ping(self) -> Pong:
        """Who is there: what is judged, and how far apart we are. Raises UnavailableError if nobody listens."""
        with self._asking(Ping(verb="ping")) as connection:
            return _expected(self._reply(connection, ANSWER_S), Pong)

    def submit(self, candidate: Candidate, problem: str, size: str) -> Evaluation:
        """The record of a candidate. Raises JudgeRefused, or UnavailableError if nobody listens or the judge ended."""
        return self.submit_and_hear(candidate, problem, size).evaluation

    def submit_and_hear(self, candidate: Candidate, problem: str, size: str, on_wait: Callable[[Waiting], None] | None = None) -> Judged:
        """The whole answer to a submission. on_wait hears its number once it is taken. Raises as `submit` does."""
        with self._asking(Submit(verb="submit", candidate=candidate, problem=problem, size=size, agent=self.agent)) as connection:
            waiting = _expected(self._reply(connection, ANSWER_S), Waiting)
            if on_wait is not None:
                on_wait(waiting)
            try:
                judged = _expected(self._reply(connection, self.patience_s), Judged)
            except UnavailableError as error:
                raise UnavailableError(f"{error}; if it still runs, ask for submission {waiting.submission}") from error
        if judged.evaluation.candidate != candidate.id:
            raise UnavailableError(f"whoever listens at {self.path} answered for another candidate, so it is no judge of this version")
        return judged

    def status(self, submission: str) -> Waiting | Judged:
        """How a submission of this user stands. Raises JudgeRefused if there is none, or nothing came of it."""
        with self._asking(Ask(verb="status", submission=submission, agent=self.agent)) as connection:
            reply = self._reply(connection, ANSWER_S)
            return reply if isinstance(reply, Waiting) else _expected(reply, Judged)

    def _asking(self, request: Ping | Submit | Ask) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_S)
            connect(connection, self.path)
        except OSError as error:
            connection.close()
            raise UnavailableError(
                f"no judge answers at {self.path} ({error.strerror or error}): start one with `kernelbraid judge serve`, or name its socket"
            ) from error
        with contextlib.suppress(OSError):  # a judge that refuses early stops reading; what it said can still be read
            send(connection, request, ANSWER_S)
        return connection

    def _reply(self, connection: socket.socket, seconds: float) -> Reply:
        try:
            return read_reply(receive(connection, MAX_ANSWER, seconds))
        except FrameError as error:
            why = f"did not answer within {seconds:g} s" if error.kind == "too_slow" else "ended before it answered"
            if error.kind == "malformed" and not error.clean_end:
                why = f"gave no sound answer: {error}"
            raise UnavailableError(f"the judge at {self.path} {why}") from error


def _expected(reply: Reply, kind: type[T]) -> T:
    if isinstance(reply, Refused):
        raise JudgeRefused(reply.kind, reply.reason)
    if not isinstance(reply, kind):
        raise UnavailableError(f"the judge answered '{reply.answer}' where '{kind.__name__.lower()}' was due: it is of another version")
    return reply
