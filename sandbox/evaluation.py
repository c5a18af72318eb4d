"""The judge's record. A time without a pass cannot be built, and an edited record shows (hash chain)."""

from __future__ import annotations

import datetime
import json
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from pydantic import Field, model_validator

from sandbox.errors import RecordError
from sandbox.records import Frozen, canonical_json, content_hash

PROTOCOL = "kernelbraid-judge-1"


class Status(StrEnum):
    """Closed. Only `passed` may carry a time."""

    PASSED = "passed"
    WRONG = "wrong"
    COMPILE_ERROR = "compile_error"
    CRASH = "crash"
    HANG = "hang"
    LIMIT = "limit"
    RULE_BROKEN = "rule_broken"
    CHEATING = "cheating"
    INFRASTRUCTURE = "infrastructure"
    UNAVAILABLE = "unavailable"


class Purpose(StrEnum):
    """Why it was judged; part of the key."""

    SEARCH = "search"
    ADMIT = "admit"
    REGRADE = "regrade"
    BISECT = "bisect"
    REPLAY = "replay"


class Standing(StrEnum):
    """How far a pass may be trusted. Only `confirmed` enters memory."""

    PROVISIONAL = "provisional"
    CONFIRMED = "confirmed"
    QUARANTINED = "quarantined"


class Environment(Frozen):
    """Where it was measured: everything that may change a number."""

    cpu: str
    cores: int
    arch: str
    kernel: str
    compiler: str
    torch: str = ""
    device: str = ""
    walls: tuple[str, ...] = ()
    missing_walls: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Hash of the facts."""
        return content_hash(self)


class TensorError(Frozen):
    """Error of one output or state tensor of one case against the reference, beside what is allowed.

    `rel_rms` = |got - truth| / |truth| in the Euclidean norm; `max_element` is the largest element
    error over the RMS of the true tensor."""

    rel_rms: float
    allowed_rel_rms: float
    max_element: float
    allowed_max_element: float
    ok: bool
    note: str = ""


class CaseResult(Frozen):
    """One case: fresh inputs under ordinary or probe weights."""

    probe: str
    seed: int
    position: int
    steps: int
    tensors: dict[str, TensorError]

    @property
    def ok(self) -> bool:
        """All tensors within their bounds."""
        return all(t.ok for t in self.tensors.values())


class Interval(Frozen):
    """A median with a 95 % interval, bootstrapped over process pairs; `pairs` samples from `processes` fresh pairs."""

    median: float
    low: float
    high: float
    pairs: int
    processes: int = 1
    of: str = ""  # what it is: "speedup vs materialising baseline", "seconds per step", ...

    @model_validator(mode="after")
    def _check(self) -> Interval:
        if not self.low <= self.median <= self.high:
            raise RecordError(f"interval '{self.of}': low {self.low} <= median {self.median} <= high {self.high} does not hold")
        return self


class PhaseTime(Frozen):
    """One phase of the timed binary: stamped by the runtime (an estimate), beside the prediction."""

    name: str
    predicted_us: float
    stamped_us: float
    bytes: int
    sync_us: float = 0.0  # of stamped_us: from the end of a block's own work to the end of the barrier, mean over blocks


class Times(Frozen):
    """What was measured of a candidate that passed."""

    step_seconds: Interval
    vs: dict[str, Interval] = {}  # ratios: baseline seconds / candidate seconds
    device_seconds: Interval | None = None  # per step between device events, by the candidate's process; bounded by the parent's slope
    once_seconds: float | None = None  # between device events, what a chain costs beside its steps (adopting a fresh state, say)
    read_pass_share: Interval | None = None  # fastest read-only pass over the same pages / step
    phases: tuple[PhaseTime, ...] = ()
    clock: str = "parent, wall, mean over a chain of a secret number of steps; its slope over chain lengths is a check"


class Evaluation(Frozen):
    """One judgement. Built only through the fields' own consistency; chained to the record before it."""

    problem: str
    size: str
    candidate: str
    candidate_name: str = ""
    role: Literal["stage", "solution"]
    node: str = ""
    protocol: str = PROTOCOL
    environment: Environment
    purpose: Purpose
    attempt: int = 1
    status: Status
    standing: Standing = Standing.PROVISIONAL
    cases: tuple[CaseResult, ...] = ()
    times: Times | None = None
    dispatches_per_step: float | None = None
    dispatch_evidence: Literal["", "runtime", "profiler"] = ""
    dispatch_policy: int | None = None
    launches: dict[str, float] = {}  # per step on the device, by kind or kernel name, as the profiler saw them
    device_facts: tuple[dict[str, Any], ...] = ()  # clocks, power and other users of the device, before and after
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    peak_bytes: int = 0
    log: str = ""
    ended: str = Field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    seconds: float = 0.0
    load_average: float = 0.0  # of the whole machine over the last minute, when the evaluation ended
    previous: str = ""  # id of the record before it in its file
    id: str = ""  # hash of all the rest

    @model_validator(mode="after")
    def _check(self) -> Evaluation:
        passed = self.status is Status.PASSED
        if self.times is not None and not passed:
            raise RecordError(f"a record with status '{self.status}' cannot carry a time")
        if passed and not self.cases:
            raise RecordError("'passed' needs at least one checked case")
        if passed and not all(c.ok for c in self.cases):
            raise RecordError("'passed' contradicts a case whose error is out of bounds")
        if self.status is Status.WRONG and self.cases and all(c.ok for c in self.cases):
            raise RecordError("'wrong' needs a case that is out of bounds")
        if self.standing is Standing.CONFIRMED and (not passed or self.times is None):
            raise RecordError("only a timed pass can be confirmed")
        if (self.role == "stage") != bool(self.node):
            raise RecordError("a stage evaluation names its node, a solution evaluation none")
        if self.dispatches_per_step is not None and not self.dispatch_evidence:
            raise RecordError("a dispatch count needs its evidence: runtime or profiler")
        return self

    @property
    def key(self) -> str:
        """What makes two evaluations the same work: candidate, problem, protocol, environment, purpose, attempt."""
        return evaluation_key(self.candidate, self.problem, self.size, self.environment.id, self.purpose, self.attempt, self.protocol)

    def chained(self, previous: str) -> Evaluation:
        """This record with its place in a chain and its own hash filled in."""
        body = self.model_copy(update={"previous": previous, "id": ""})
        return body.model_copy(update={"id": content_hash(body.model_dump(mode="json", exclude={"id"}))})


def evaluation_key(
    candidate: str, problem: str, size: str, environment: str, purpose: Purpose, attempt: int, protocol: str = PROTOCOL
) -> str:
    """Hash of what makes two evaluations the same work, known before either is done."""
    return content_hash([candidate, problem, size, protocol, environment, purpose, attempt])


def append(path: Path, evaluation: Evaluation) -> Evaluation:
    """Append to a JSONL file under its lock; returns the record as written, chained to the last one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        last = ""
        if path.exists():
            lines = _lines(path)
            try:
                last = str(json.loads(lines[-1])["id"]) if lines else ""
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(f"{path}:{len(lines)}: the last record is torn (a writer died); begin another file") from error
        record = evaluation.chained(last)
        with path.open("a") as f:
            f.write(canonical_json(record) + "\n")
            f.flush()
    return record


def _lines(path: Path) -> list[str]:
    """Lines as we wrote them: `splitlines` also cuts at U+2028 and its like, which a candidate may print into its log."""
    text = path.read_bytes().decode(errors="replace")
    if text and not text.endswith("\n"):
        raise RecordError(f"{path}: the last record is torn (a writer died); the records before it are whole")
    return text.split("\n")[:-1]


def read_chain(path: Path) -> list[Evaluation]:
    """All records of a file. Raises RecordError naming the first line whose hash or link is wrong."""
    out: list[Evaluation] = []
    previous = ""
    for number, line in enumerate(_lines(path), 1):
        try:
            record = Evaluation.model_validate_json(line)
        except ValueError as error:
            raise RecordError(f"{path}:{number}: this is no record: {error}") from error
        # The line as it stands is hashed, not the record it becomes: a field that later versions add changes no old hash.
        body = {k: v for k, v in json.loads(line).items() if k != "id"}
        if record.previous != previous or content_hash(body) != record.id:
            raise RecordError(f"{path}:{number}: the record was edited or records are missing before it")
        previous = record.id
        out.append(record)
    return out
