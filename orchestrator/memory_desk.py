"""How a campaign speaks with memory: what it recalls, what it hands in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from agents.brief import Outcome, Proposal, Recalled
from memory.change import Change, Choice
from memory.store import MemoryStore
from memory.trick import Failure, FailureStatus, Hardware, Trick, TrickKind, Use
from sandbox.candidate import Candidate, Implementation
from sandbox.evaluation import Environment, Evaluation, Status
from sandbox.records import Frozen

RECALLED = 24
FAILURES: dict[Status, FailureStatus] = {
    Status.WRONG: "wrong", Status.COMPILE_ERROR: "compile_error", Status.CRASH: "crash", Status.HANG: "hang",
    Status.LIMIT: "limit", Status.RULE_BROKEN: "rule_broken", Status.CHEATING: "cheating",
}  # fmt: skip


class Place(Frozen):
    """Where a campaign works: what tricks and failures are bound to."""

    campaign: str
    problem: str
    size: str
    shape: dict[str, int | str]
    target: str
    environment: Environment

    @property
    def hardware(self) -> Hardware:
        """The machine."""
        return Hardware.of(self.environment)

    @property
    def toolchain(self) -> str:
        """The compiler."""
        return self.environment.compiler


class Recollection(Frozen):
    """What memory had to say at a campaign's start."""

    tricks: tuple[Trick, ...] = ()
    failures: tuple[Failure, ...] = ()


def shape_of(dims: Any) -> dict[str, int | str]:
    """A problem's dimensions as scalars."""
    values = asdict(dims) if is_dataclass(dims) and not isinstance(dims, type) else {}
    return {k: v if isinstance(v, (int, str)) and not isinstance(v, bool) else str(v) for k, v in values.items()}


class Librarian:
    """In the worker that owns the store."""

    def __init__(self, folder: str) -> None:
        self.store = MemoryStore(Path(folder))

    def recall(self, place: Place, kinds: Sequence[str]) -> Recollection:
        """Verified tricks for these kinds of stages and for plans, nearest in meaning first, and the failures that bind here."""
        text = f"{place.problem} {place.size} {place.target} {' '.join(kinds)} plan all-to-alls"
        found = self.store.search(text, RECALLED, {"target": place.target, "standing": "verified"})
        own = self.store.tricks(problem=place.problem, target=place.target, standing="verified")
        tricks = {t.id: t for t in [*own, *(f.trick for f in found)]}
        useful = [t for t in tricks.values() if t.change is not None and (t.change.rewrites or set(t.stage_kinds) & set(kinds))]
        failures = self.store.failures(place.hardware, place.shape, place.toolchain, place.problem)
        return Recollection(tricks=tuple(useful), failures=tuple(failures))

    def admit(self, trick: Trick, evaluation: Evaluation, incumbent: str) -> str:
        """ "" if the trick is in memory now, else why not."""
        return self.store.admit(trick, evaluation, incumbent)

    def get(self, trick: str) -> Trick:
        """A trick as it stands in memory, with the judge's facts and the store's stamp."""
        return self.store.get(trick)

    def fail(self, failures: Sequence[Failure]) -> None:
        """Remember what did not help."""
        for failure in failures:
            self.store.fail(failure)

    def used(self, uses: Sequence[Use]) -> None:
        """Give credit."""
        for use in uses:
            self.store.used(use)

    def close(self) -> None:
        """Let the store go."""
        self.store.close()


def same_place(trick: Trick, place: Place) -> bool:
    """Whether it was proven on this problem and shape, on such hardware."""
    return trick.problem == place.problem and trick.shape == place.shape and trick.hardware == place.hardware


def recalled(tricks: Sequence[Trick], place: Place) -> tuple[Recalled, ...]:
    """For briefs: those of this very place first, then by what they gained."""
    ordered = sorted(tricks, key=lambda t: (not same_place(t, place), -t.ratio.median, t.id))
    return tuple(
        Recalled(id=t.id, claim=t.claim, change=t.change, ratio=t.ratio.median, same_place=same_place(t, place))
        for t in ordered
        if t.change is not None
    )


def braid(
    tricks: Sequence[Trick], place: Place, slots: Mapping[str, str], known: Mapping[str, set[str]]
) -> tuple[Change | None, tuple[str, ...]]:
    """All that memory holds for this problem as one change, and the ids it comes from: later proofs over earlier ones, those of
    this very place over all. slots: slot -> kind. known: Implementation name -> ids that the skills offer now."""
    choices: dict[str, Choice] = {}
    rewrites: tuple[Any, ...] = ()
    used: dict[str, str] = {}
    for trick in sorted(tricks, key=lambda t: (same_place(t, place), t.at, t.id)):
        if trick.change is None or trick.problem != place.problem:
            continue
        for slot, choice in trick.change.choices.items():
            if slot in slots and choice.id in known.get(choice.implementation, set()):
                choices[slot], used[slot] = choice, trick.id
        if trick.change.rewrites:
            rewrites, used["plan"] = trick.change.rewrites, trick.id
    if not choices and not rewrites:
        return None, ()
    return Change(choices=choices, rewrites=rewrites), tuple(sorted(set(used.values())))


def trick_of(proposal: Proposal, change: Change, place: Place, evaluation: Evaluation, parent: Candidate,
             chosen: Mapping[str, Implementation], kinds: Mapping[str, str]) -> Trick:  # fmt: skip
    """The claim that `evaluation` is to prove. chosen: slot -> Implementation of the changed slots. kinds: slot -> kind."""
    assert evaluation.times is not None
    kind: TrickKind = "implementation" if not change.rewrites else "megakernel" if change.choices else "plan"
    parts = []
    for choice in dict.fromkeys(str(c) for c in change.choices.values()):
        slots = sorted(s for s, c in change.choices.items() if str(c) == choice)
        parts.append(f"{choice} in {', '.join(slots)}")
    if change.rewrites:
        parts.append(f"a plan of {len(change.rewrites)} rewrites ({'; '.join(map(str, change.rewrites[-3:]))})")
    stage_kinds = tuple(sorted({kinds[s] for s in change.choices}))
    roofline = "decode at batch 1" + (f", kinds {', '.join(stage_kinds)}" if stage_kinds else ", plans")
    return Trick(
        claim=f"{' and '.join(parts)} beats what stood there before, in the whole step", kind=kind, problem=place.problem, size=place.size,
        shape=place.shape, target=place.target, environment=place.environment.id, specialist=proposal.specialist,
        proposer=proposal.proposer, author=f"campaign {place.campaign}", stage_kinds=stage_kinds, slots=tuple(sorted(change.choices)),
        change=change, sources={m.id: m.source for m in chosen.values()},
        skills=tuple(sorted({m.author.removeprefix("skill:") for m in chosen.values()})), candidate=evaluation.candidate, parent=parent.id,
        evaluations=(evaluation.id,), ratio=evaluation.times.vs["incumbent"], applies=roofline, shown=proposal.shown, used=proposal.used,
    )  # fmt: skip


def failure_of(outcome: Outcome, place: Place, evaluation: Evaluation | None, parent: str, kind: TrickKind) -> Failure | None:
    """What to remember of a proposal that did not help; None if nothing was learnt from it."""
    status = FAILURES.get(outcome.status)
    if status is None:
        if outcome.status is not Status.PASSED or outcome.admitted or outcome.ratio <= 0:
            return None
        if outcome.ratio > 0.98 and kind == "implementation":
            return None  # inside what a stage alone can tell
        status = "slower" if outcome.ratio < 0.98 else "no_difference"
    p = outcome.proposal
    return Failure(
        claim=str(p.change), change=p.change, kind=kind, slot=p.slot, problem=place.problem, size=place.size, shape=place.shape,
        target=place.target, hardware=place.hardware, toolchain=place.toolchain, specialist=p.specialist,
        candidate=evaluation.candidate if evaluation else "", parent=parent, evaluations=(evaluation.id,) if evaluation else (),
        status=status, reason=outcome.reason or f"ratio {outcome.ratio:.3f}",
    )  # fmt: skip
