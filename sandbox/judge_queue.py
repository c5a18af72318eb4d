"""Submissions on their way through the judge's server: a bounded queue with a turn for every user, and what became of the last ones."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from sandbox.candidate import Candidate
from sandbox.evaluation import Evaluation
from sandbox.judge_wire import FrameError, RefusalKind
from sandbox.problem import Problem
from sandbox.separation import Separation

KEPT = 256  # finished submissions that can still be asked for


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, by the kernel's word; `agent` is what the client calls itself."""

    uid: int
    gid: int
    pid: int
    agent: str = ""


@dataclass(eq=False)
class Submission:
    """One candidate on its way. `done` is set when `evaluation`, or the reason of a refusal, stands."""

    candidate: Candidate
    problem: Problem
    peer: Peer
    separation: Separation
    id: str = field(default_factory=lambda: secrets.token_hex(16))  # nobody else can guess it
    judging: bool = False
    evaluation: Evaluation | None = None
    refusal: tuple[RefusalKind, str] | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Queue:
    """First come, first served for each user; users take turns, and each may hold `places` of them. All methods may be called from any thread."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._waiting: OrderedDict[int, deque[Submission]] = OrderedDict()  # by uid, whose turn it is first
        self._known: OrderedDict[str, Submission] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, submission: Submission) -> int:
        """Take a submission; how many come before it at most. Raises FrameError if its user's places are taken, or nothing is judged any more."""
        with self._changed:
            if self._closed:
                raise FrameError("closing", "the judge is ending and takes nothing any more")
            own = self._waiting.setdefault(submission.peer.uid, deque())
            if len(own) >= self.places:
                raise FrameError("full", f"{len(own)} submissions of uid {submission.peer.uid} wait already: ask again when one is judged")
            own.append(submission)
            self._known[submission.id] = submission
            self._changed.notify()
            return self._ahead(submission)

    def _ahead(self, submission: Submission) -> int:
        own = self._waiting[submission.peer.uid]
        mine = own.index(submission)
        others = sum(min(len(queue), mine + 1) for uid, queue in self._waiting.items() if uid != submission.peer.uid)
        return mine + others + sum(s.judging for s in self._known.values())

    def take(self, seconds: float) -> Submission | None:
        """The next submission to be judged, or None if none came within so many seconds."""
        with self._changed:
            if not self._waiting:
                self._changed.wait(seconds)
            if not self._waiting:
                return None
            uid, own = self._waiting.popitem(last=False)
            submission = own.popleft()
            if own:
                self._waiting[uid] = own  # last again: the next user's turn
            submission.judging = True
            return submission

    def withdraw(self, submission: Submission) -> None:
        """Forget one whose sender never learnt that it was taken, unless it is being judged already."""
        with self._changed:
            own = self._waiting.get(submission.peer.uid)
            if own is not None and submission in own:
                own.remove(submission)
                self._known.pop(submission.id, None)
                if not own:
                    del self._waiting[submission.peer.uid]

    def finish(self, submission: Submission, evaluation: Evaluation | None, refusal: tuple[RefusalKind, str] | None = None) -> None:
        """What became of one; whoever waits for it wakes up."""
        with self._changed:
            if submission.done.is_set():
                return
            submission.judging, submission.evaluation, submission.refusal = False, evaluation, refusal
            submission.done.set()
            finished = [name for name, s in self._known.items() if s.done.is_set()]
            for name in finished[: max(0, len(finished) - KEPT)]:
                del self._known[name]

    def find(self, name: str, uid: int) -> tuple[Submission, int]:
        """A submission of this user, and how many come before it. Raises FrameError if there is none, or it is somebody else's."""
        with self._changed:
            found = self._known.get(name)
            if found is None or found.peer.uid != uid:
                raise FrameError("unknown_submission", f"uid {uid} has no such submission here, or it ended long ago")
            waits = not found.judging and not found.done.is_set()
            return found, self._ahead(found) if waits else 0

    def close(self) -> None:
        """Refuse whatever waits, and whatever comes."""
        with self._changed:
            self._closed = True
            left = [s for own in self._waiting.values() for s in own] + [s for s in self._known.values() if s.judging]
            self._waiting.clear()
        for submission in left:
            self.finish(submission, None, ("closing", "the judge ended before this was judged: submit it again to the next one"))
