"""What memory keeps: tricks, failures, uses and changes of standing. Records only; `memory/store.py` writes and reads them.

Only a Trick that the store has checked against its Evaluation carries trust `verified`, and only such a Trick is in the file.
"""

from __future__ import annotations

import datetime
from typing import Any, Literal

from pydantic import Field, model_validator

from memory.change import Change
from sandbox.evaluation import Environment, Evaluation, Interval, Standing, Status
from sandbox.records import Frozen, content_hash

CPU_MARGIN = 1.02
CUDA_MARGIN = 1.01
MIN_PROCESSES = 5
VERSION = 2  # of every record below; memory/migrations.py brings older lines here

TrickKind = Literal["plan", "implementation", "megakernel"]
TrickStanding = Literal["verified", "stale", "refuted"]
FailureStatus = Literal[
    "wrong", "compile_error", "crash", "hang", "limit", "rule_broken", "cheating", "slower", "no_difference"
]  # fmt: skip
UseOutcome = Literal["helped", "no_difference", "failed"]

SHORT_LIVED: tuple[FailureStatus, ...] = ("slower", "no_difference", "limit")  # they hang on the incumbent or on the budget
SHORT_DAYS, LONG_DAYS = 30, 180


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class Hardware(Frozen):
    """The machine as far as a time depends on it."""

    cpu: str
    cores: int
    arch: str
    device: str = ""  # name of the accelerator; "" on a CPU

    @classmethod
    def of(cls, environment: Environment) -> Hardware:
        """That of an Evaluation's environment."""
        return cls(cpu=environment.cpu, cores=environment.cores, arch=environment.arch, device=environment.device)

    def __str__(self) -> str:
        return f"{self.device or self.cpu} ({self.cores} cores, {self.arch})"


class Trick(Frozen):
    """What was found, where it holds, and the evaluations that prove it.

    `ratio` is parent seconds / candidate seconds of the whole step, paired; `ratio.of` says of what. `sources` maps an
    Implementation id that `change` chooses to its source text. Lines of version 1 have no hardware, toolchain or change."""

    record: Literal["trick"] = "trick"
    version: Literal[2] = 2
    claim: str  # one sentence
    kind: TrickKind
    problem: str
    size: str
    shape: dict[str, int | str] = {}  # the problem's dimensions at that size
    target: str
    environment: str  # id of the Environment
    hardware: Hardware | None = None
    toolchain: str = ""  # compiler with its version
    specialist: str = ""
    proposer: str = ""  # tuner, model, script, external
    author: str = ""
    stage_kinds: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    change: Change | None = None
    sources: dict[str, str] = {}
    skills: tuple[str, ...] = ()  # names of the skill folders that the implementations come from
    candidate: str
    parent: str  # id of the candidate that it was paired with
    evaluations: tuple[str, ...]
    ratio: Interval
    applies: str = ""  # when to try it
    not_when: str = ""
    shown: tuple[str, ...] = ()  # ids of the tricks that its proposer was shown, and those that it says it used
    used: tuple[str, ...] = ()
    trust: Literal["unverified", "verified"] = "unverified"  # the store's stamp; nobody else sets it
    at: str = Field(default_factory=_now)

    @property
    def id(self) -> str:
        """Hash of what was changed and where it was proven, in whatever words, whenever and by whomever."""
        names = {"kind", "problem", "size", "target", "environment", "change", "candidate", "parent"}
        return content_hash(self.model_dump(mode="json", include=names))


class Failure(Frozen):
    """What was tried and did not help. It holds on the same hardware, shape and toolchain, until it expires."""

    record: Literal["failure"] = "failure"
    version: Literal[2] = 2
    claim: str = ""
    change: Change
    kind: TrickKind
    slot: str = ""  # "" for a plan or several slots
    problem: str
    size: str
    shape: dict[str, int | str]
    target: str = "cpu"
    hardware: Hardware
    toolchain: str
    specialist: str = ""
    candidate: str = ""
    parent: str = ""
    evaluations: tuple[str, ...] = ()
    status: FailureStatus
    reason: str = ""  # first line of the log
    at: str = Field(default_factory=_now)
    expires: str = ""  # ISO date, the first day on which it counts no more; filled in by status if empty

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if isinstance(data, dict):
            data = dict(data)
            data.setdefault("at", _now())
            if not data.get("expires"):
                days = SHORT_DAYS if data.get("status") in SHORT_LIVED else LONG_DAYS
                data["expires"] = (datetime.datetime.fromisoformat(data["at"]).date() + datetime.timedelta(days=days)).isoformat()
            data["reason"] = next(iter(str(data.get("reason", "")).strip().splitlines()), "")[:500]
        return data

    @model_validator(mode="after")
    def _check(self) -> Failure:
        datetime.date.fromisoformat(self.expires)
        return self

    @property
    def id(self) -> str:
        """The same change on the same problem, hardware, shape and toolchain is the same failure."""
        names = {"change", "problem", "size", "shape", "target", "hardware", "toolchain"}
        return content_hash(self.model_dump(mode="json", include=names))

    def binds(self, hardware: Hardware, shape: dict[str, int | str], toolchain: str, today: datetime.date) -> bool:
        """Whether it still says something about a try there."""
        here = self.hardware == hardware and self.shape == shape and self.toolchain == toolchain
        return here and today < datetime.date.fromisoformat(self.expires)


class Use(Frozen):
    """Credit: a proposal used a trick, and what came of it."""

    record: Literal["use"] = "use"
    version: Literal[2] = 2
    trick: str
    campaign: str
    proposal: int
    outcome: UseOutcome
    ratio: Interval | None = None
    at: str = Field(default_factory=_now)


class StandingChange(Frozen):
    """A trick was judged anew; `evaluation` is the record that says so, `verified` means verified again."""

    record: Literal["standing"] = "standing"
    version: Literal[2] = 2
    trick: str
    standing: TrickStanding
    evaluation: str
    environment: str = ""
    why: str = ""
    at: str = Field(default_factory=_now)


Record = Trick | Failure | Use | StandingChange


def margin_of(target: str) -> float:
    """What the lower end of a ratio's interval must exceed on a target."""
    return CUDA_MARGIN if target == "cuda" else CPU_MARGIN


def refusal(evaluation: Evaluation, incumbent: str, margin: float = CPU_MARGIN) -> str:
    """Why an evaluation does not prove that its candidate beats `incumbent` ("" if it does).

    The lower end of the 95 % interval of the paired ratio must lie above the margin, over at least five fresh process pairs,
    and the evaluation must be confirmed."""
    if evaluation.status is not Status.PASSED or evaluation.times is None:
        return f"status is {evaluation.status}"
    if evaluation.standing is not Standing.CONFIRMED:
        return f"standing is {evaluation.standing}"
    ratio = evaluation.times.vs.get(incumbent)
    if ratio is None:
        return f"it was not paired with {incumbent}"
    if ratio.processes < MIN_PROCESSES:
        return f"{ratio.processes} process pairs, {MIN_PROCESSES} are needed"
    if ratio.low <= margin:
        return f"the interval of the ratio starts at {ratio.low:.3f}, the margin is {margin}"
    return ""


def contradiction(standing: TrickStanding, evaluation: Evaluation, incumbent: str, margin: float) -> str:
    """Why an evaluation does not support a standing ("" if it does).

    verified: it proves the claim again. refuted: the candidate failed, or is confirmed not to clear the margin at the *upper* end
    of its interval. stale: it was judged and the claim did not show, which proves nothing either way."""
    if evaluation.status in (Status.INFRASTRUCTURE, Status.UNAVAILABLE):
        return f"status is {evaluation.status}, which says nothing about the trick"
    unproven = refusal(evaluation, incumbent, margin)
    if standing == "verified":
        return unproven
    if not unproven:
        return "the evaluation proves the claim again"
    if standing == "stale" or evaluation.times is None:
        return ""
    ratio = evaluation.times.vs.get(incumbent)
    if ratio is None or evaluation.standing is not Standing.CONFIRMED or ratio.processes < MIN_PROCESSES:
        return f"{unproven}; that makes it stale at most"
    return "" if ratio.high <= margin else f"the interval of the ratio ends at {ratio.high:.3f}, above the margin {margin}"
