"""The judge behind a Unix socket: agents send candidates as bytes and get the record, and touch nothing else of it.

    with JudgeServer(judge, Offer([problem]), store, path, limits) as server:
        server.serve()      # judges in this thread, one submission at a time, until `stop` or Ctrl-C

Reading and answering happens in one thread per connection, each under deadlines, so that a slow or dead client holds nobody up.
Whatever a client sends ends in an answer. Limits, cases, rivals, purpose and attempt are the server's. A record holds the seeds of
its cases, so no case is ever used again after it was answered.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import select
import socket
import stat
import struct
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from filelock import FileLock, Timeout

from sandbox.errors import KernelbraidError, RecordError, UnavailableError
from sandbox.evaluation import Evaluation, Purpose, append, read_chain
from sandbox.judge import Judge, JudgeLimits
from sandbox.judge_queue import Peer, Queue, Submission
from sandbox.judge_wire import (
    MAX_REQUEST,
    Ask,
    FrameError,
    Judged,
    Ping,
    Pong,
    RefusalKind,
    Refused,
    Submit,
    Waiting,
    read_request,
    receive,
    send,
)
from sandbox.problem import Problem
from sandbox.quiet import on_cpus
from sandbox.records import Frozen, canonical_json
from sandbox.separation import Places, Separation, Who, server_identity
from sandbox.stage_checking import CasePool

RECORDS, RECEIVED = "evaluations.jsonl", "submissions.jsonl"
SEND_S = 10.0  # for an answer to be taken
LOOK_S = 30.0  # how long what was found about a user's rights is believed
_PEERGROUPS = 59  # SO_PEERGROUPS, for which Python has no name
Answered = Pong | Waiting | Judged | Refused


class Offer:
    """The problems that a server judges. A client's words are keys here, never paths."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = {(p.name, p.size): p for p in problems}

    def __call__(self, name: str, size: str) -> Problem:
        """The problem at a size. Raises FrameError with what there is instead."""
        if (name, size) not in self.problems:
            known = ", ".join("/".join(key) for key in sorted(self.problems))
            raise FrameError("not_offered", f"this judge has no such problem and size; it has {known}")
        return self.problems[name, size]


class Received(Frozen):
    """A line of submissions.jsonl: who sent what, by the kernel's word, and what came of it."""

    at: str
    event: Literal["received", "judged", "refused"]
    submission: str
    uid: int
    gid: int
    pid: int
    agent: str  # what the client calls itself
    problem: str
    size: str
    candidate: str
    separation: Separation
    evaluation: str = ""  # id of the record
    reason: str = ""


class JudgeServer:
    """One judge, one store, one socket. Use it in a `with` statement; see the module."""

    def __init__(self, judge: Judge, offer: Offer, store: Path, path: Path, limits: JudgeLimits, *, agents: Iterable[int] = (),
                 places: int = 16, connections: int = 32, read_s: float = 10.0, say: Callable[[str], None] | None = None) -> None:  # fmt: skip
        """store: folder of the records, which this server alone writes. path: the socket. agents: uids beside our own that may submit.

        places, connections: what each uid may have waiting, and open, at a time. read_s: seconds for a whole request to come.
        """
        self.judge, self.offer, self.store, self.path, self.limits = judge, offer, store.resolve(), path.absolute(), limits
        self.agents = frozenset({*agents, os.geteuid()})
        self.connections, self.read_s, self.say = connections, read_s, say or _to_stderr
        self.queue = Queue(places)
        self.places = Places(self.store, judge.cache.resolve(), self.path.parent, tuple({p.folder for p in offer.problems.values()}))
        self._open: Counter[int] = Counter()
        self._counting, self._writing, self._stopping = threading.Lock(), threading.Lock(), threading.Event()
        self._looked: dict[Who, tuple[float, Separation]] = {}
        self._attempts: Counter[tuple[str, str, str]] = Counter()
        self._last = ""  # id of the newest record
        self._broken = ""

    # -- beginning and end -----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Lock the store, verify its chain, listen. Raises UnavailableError, or RecordError if a record was edited."""
        self.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = FileLock(self.store / "server.lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UnavailableError(f"another judge's server writes to {self.store}: end it, or name another folder") from None
        try:
            for record in read_chain(self.store / RECORDS) if (self.store / RECORDS).exists() else ():
                self._count(record)
            self._listener = self._listen()
        except BaseException:
            self._lock.release()
            raise
        for uid in sorted(self.agents - {os.geteuid()}) or [os.geteuid()]:
            found = self.separation(Who.of(uid))
            self.say(f"agents under uid {uid}: {found.kind}{'; ' + found.reason if found.reason else ''}")
        threading.Thread(target=self._accept, name="judge-accept", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._listener.close()
        self.path.unlink(missing_ok=True)
        self.queue.close()
        deadline = time.monotonic() + 1.0
        while self._open.total() and time.monotonic() < deadline:  # those who wait are told that it ended
            time.sleep(0.02)
        self._lock.release()

    def stop(self) -> None:
        """Let `serve` return once what is being judged has been. From any thread."""
        self._stopping.set()

    def _listen(self) -> socket.socket:
        if not self.path.parent.exists():
            self.path.parent.mkdir(parents=True)
            self.path.parent.chmod(0o755)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._clear_path()
            listener.bind(str(self.path))
            # made without a right to connect for others; whether this uid may submit is decided by its credentials
            self.path.chmod(0o666 if len(self.agents) > 1 else 0o600)
            listener.listen(64)
            listener.settimeout(0.5)
        except OSError as error:
            listener.close()
            raise UnavailableError(f"cannot listen at {self.path}: {error.strerror or error}; name another socket") from error
        except UnavailableError:
            listener.close()
            raise
        return listener

    def _clear_path(self) -> None:
        """Remove a socket that a dead server left. Raises UnavailableError if somebody listens, or it is no socket."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise UnavailableError(f"{self.path} is there and is no socket: remove it, or name another")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(ConnectionRefusedError):
                probe.connect(str(self.path))
                raise UnavailableError(f"another server listens at {self.path}: end it, or name another socket")
            self.path.unlink()

    # -- judging: in the thread of `serve` alone, which outlives its boxes -------------------------------------------

    def serve(self) -> None:
        """Judge what comes, until `stop`."""
        while not self._stopping.is_set():
            submission = self.queue.take(0.5)
            if submission is not None:
                self._judge(submission)

    def _judge(self, submission: Submission) -> None:
        candidate, problem, peer = submission.candidate, submission.problem, submission.peer
        record: Evaluation | None = None
        refusal: tuple[RefusalKind, str] | None = None
        try:
            if self._broken:
                raise RecordError(self._broken)
            self.say(f"{candidate.id[:12]} of uid {peer.uid}: being judged on {problem.name}/{problem.size}")
            self.judge.cases = CasePool()  # whoever got a record knows the seeds of its cases
            attempt = self._attempts[problem.name, problem.size, candidate.id] + 1
            record = append(
                self.store / RECORDS,
                self.judge.evaluate(candidate, problem, self.limits, purpose=Purpose.SEARCH, attempt=attempt),
            )
            if record.previous != self._last:
                self._broken = "somebody else wrote to the judge's records while it ran: nothing more is judged"
                raise RecordError(self._broken)
            self._count(record)
            self._note("judged", submission, evaluation=record.id)
            self.say(f"{candidate.id[:12]} of uid {peer.uid}: {record.status} ({record.standing})")
        except Exception as error:  # whatever it is, the next submission is judged all the same
            traceback.print_exc()
            own = f"the judge itself failed ({type(error).__name__}); its log says more"
            reason = str(error) if isinstance(error, KernelbraidError) else own
            record, refusal = None, ("failed", reason)
            with contextlib.suppress(OSError):
                self._note("refused", submission, reason=reason)
        self.queue.finish(submission, record, refusal)

    def _count(self, record: Evaluation) -> None:
        self._last = record.id
        self._attempts[record.problem, record.size, record.candidate] += 1

    def _note(
        self, event: Literal["received", "judged", "refused"], submission: Submission, evaluation: str = "", reason: str = ""
    ) -> None:
        s, p = submission, submission.peer
        line = Received(at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), event=event, submission=s.id, uid=p.uid,
                        gid=p.gid, pid=p.pid, agent=p.agent, problem=s.problem.name, size=s.problem.size, candidate=s.candidate.id,
                        separation=s.separation, evaluation=evaluation, reason=reason)  # fmt: skip
        with self._writing, (self.store / RECEIVED).open("a") as file:
            file.write(canonical_json(line) + "\n")

    # -- talking: a thread for each connection -----------------------------------------------------------------------

    def _accept(self) -> None:
        # threads inherit their CPUs: where some are to spare, reading what clients send disturbs no timing
        with on_cpus(self.judge.spare) if self.judge.spare else contextlib.nullcontext():
            while not self._stopping.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError:
                    self._stopping.wait(0.1)  # no descriptors left, say: those that are open end by their deadlines
                    continue
                try:
                    threading.Thread(target=self._talk, args=(connection,), name="judge-client", daemon=True).start()
                except RuntimeError:
                    connection.close()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            uid = None
            try:
                uid, gid, pid, who = _credentials(connection)
                with self._counting:
                    self._open[uid] += 1
                separation = self.separation(who)
                try:
                    answer = self._answer(connection, Peer(uid, gid, pid), separation)
                except FrameError as error:
                    answer = None if error.clean_end else Refused(separation=separation, kind=error.kind, reason=str(error))
                except OSError as error:
                    answer = Refused(separation=separation, kind="failed", reason=f"the judge itself failed: {error.strerror}")
                if answer is not None:
                    send(connection, answer, SEND_S)
            except OSError:
                pass  # the client is gone
            except Exception:
                traceback.print_exc()
            finally:
                if uid is not None:
                    with self._counting:
                        self._open[uid] -= 1

    def _answer(self, connection: socket.socket, peer: Peer, separation: Separation) -> Answered | None:
        """What to say at last; None if nobody is there to hear it. Raises FrameError for what is refused."""
        if peer.uid not in self.agents:
            raise FrameError("not_allowed", f"uid {peer.uid} may not submit here; the judge's owner names the uids of agents")
        if self._open[peer.uid] > self.connections:
            raise FrameError("full", f"uid {peer.uid} has {self.connections} connections open already: close some")
        request = read_request(receive(connection, MAX_REQUEST, self.read_s))
        match request:
            case Ping():
                return Pong(separation=separation, offers=tuple(sorted(self.offer.problems)))
            case Ask():
                submission, ahead = self.queue.find(request.submission, peer.uid)
                return self._state(submission, ahead, separation)
            case Submit():
                return self._submit(connection, request, replace(peer, agent=request.agent), separation)

    def _submit(self, connection: socket.socket, request: Submit, peer: Peer, separation: Separation) -> Answered | None:
        problem = self.offer(request.problem, request.size)
        if request.candidate.threads > self.judge.threads:
            raise FrameError("not_allowed", f"candidates run on at most {self.judge.threads} threads here; 0 means all of them")
        submission = Submission(request.candidate, problem, peer, separation)
        ahead = self.queue.put(submission)
        try:
            self._note("received", submission)
            send(connection, Waiting(separation=separation, submission=submission.id, state="queued", ahead=ahead), SEND_S)
        except OSError:
            self.queue.withdraw(submission)  # nobody could ever ask for it
            raise
        while not submission.done.wait(0.5):
            if _gone(connection):
                return None  # it is judged all the same, and can be asked for
        return self._state(submission, 0, separation)

    @staticmethod
    def _state(submission: Submission, ahead: int, separation: Separation) -> Answered:
        if submission.evaluation is not None:
            return Judged(separation=separation, submission=submission.id, evaluation=submission.evaluation)
        if submission.refusal is not None:
            return Refused(separation=separation, kind=submission.refusal[0], reason=submission.refusal[1])
        state: Literal["queued", "judging"] = "judging" if submission.judging else "queued"
        return Waiting(separation=separation, submission=submission.id, state=state, ahead=ahead)

    def separation(self, who: Who | None) -> Separation:
        """How far apart this user and the judge are; looked at anew every half minute."""
        if who is None:
            return Separation(kind="unwalled", reason="the kernel does not say in which groups the client is")
        now = time.monotonic()
        at, found = self._looked.get(who, (-LOOK_S, Separation(kind="unwalled")))
        if now - at >= LOOK_S:
            found = server_identity(who, self.places)
            self._looked[who] = (now, found)
        return found


def _credentials(connection: socket.socket) -> tuple[int, int, int, Who | None]:
    """(uid, gid, pid, user with all groups) of the process that connected, from the kernel; no user if it does not tell the groups."""
    pid, uid, gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, 1024)  # Python asks for no more: 256 groups
    except OSError:
        return uid, gid, pid, None
    return uid, gid, pid, Who(uid, frozenset({gid, *struct.unpack(f"{len(groups) // 4}I", groups)}))


def _gone(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
