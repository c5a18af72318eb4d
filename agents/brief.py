"""What a specialist is told (Brief), what it answers (Proposal) and what came of it (Outcome)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from memory.change import Change, Choice, Rewrite
from sandbox.evaluation import Status
from sandbox.records import Frozen


class SlotBrief(Frozen):
    """One stage name of the problem, as it stands in the incumbent."""

    slot: str
    kind: str
    node: str  # where it is judged alone: the last layer that has it
    sharding: str  # as the incumbent's plan splits it
    stages: int  # how many layers have it
    bytes: int  # of all its stages, per step
    flops: int
    seconds: float  # of all its stages, measured alone and cold, or estimated from bytes
    share: float  # of the predicted step
    roofline: str = ""  # memory-bound, compute-bound, latency-bound, chain
    incumbent: Choice


class Recalled(Frozen):
    """A verified trick that memory holds for this kind of work."""

    id: str
    claim: str
    change: Change
    ratio: float  # median of its proof
    same_place: bool  # proven on the same problem, size and hardware


class StageTime(Frozen):
    """Seconds of one stage alone, cold, split over all blocks."""

    slot: str
    sharding: str
    implementation: str  # id
    seconds: float


class Brief(Frozen):
    """What a specialist must know to propose."""

    specialist: str
    round: int
    problem: str
    size: str
    target: str
    blocks: int
    slots: tuple[SlotBrief, ...]  # those of its kinds; all of them for a specialist of plans
    plan: dict[str, Any]  # the campaign's start plan, as a plan file says it
    rewrites: tuple[Rewrite, ...] = ()  # what the incumbent's plan has changed in it, in order
    step_seconds: float  # predicted
    barrier_seconds: float
    bandwidth: float  # bytes per second, of the read-only pass or assumed
    times: tuple[StageTime, ...] = ()
    tricks: tuple[Recalled, ...] = ()
    refuted: tuple[str, ...] = ()  # what memory knows to fail here: slot/implementation id of a stage, change id of anything else
    want: int = 1
    seconds_left: float = 0.0


class Proposal(Frozen):
    """One thing to try. `slot` is "" for a plan or for several slots at once. Rewrites are all that leads from the campaign's
    start plan to the proposed one, so that they mean the same to whoever reads them later."""

    number: int = 0  # given by the campaign
    specialist: str
    proposer: str
    slot: str = ""
    change: Change
    why: str = ""
    predicted: float = 1.0  # ratio: incumbent seconds / expected seconds, of the stage or of the step
    shown: tuple[str, ...] = ()
    used: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.specialist}: {self.change}"


class Outcome(Frozen):
    """What the judge said. `ratio`: incumbent seconds / its seconds, paired; 0 if it has no time."""

    proposal: Proposal
    status: Status
    ratio: float = Field(default=0.0, ge=0.0)
    seconds: float = 0.0  # of the stage alone, cold; 0 if unknown
    admitted: bool = False
    reason: str = ""
