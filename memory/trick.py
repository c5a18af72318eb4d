"""Tricks: claims that the judge has proven, in an append-only file. Only admission writes `verified`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Literal

from filelock import FileLock
from pydantic import Field

from sandbox.evaluation import Evaluation, Interval, Standing, Status
from sandbox.records import Frozen, canonical_json, content_hash

CPU_MARGIN = 1.02
MIN_PROCESSES = 5


class Trick(Frozen):
    """What was found, where it holds, and the evaluations that prove it."""

    claim: str
    kind: str  # plan, implementation, knob
    problem: str
    size: str
    target: str
    environment: str
    candidate: str
    parent: str
    evaluations: tuple[str, ...]
    ratio: Interval
    trust: Literal["verified"] = "verified"
    author: str = ""
    at: str = Field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    @property
    def id(self) -> str:
        """Hash of the claim's content, whenever and by whomever it was made."""
        return content_hash(
            self.model_dump(mode="json", include={"claim", "kind", "problem", "size", "target", "environment", "candidate"})
        )


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


def admit(path: Path, trick: Trick) -> bool:
    """Append a trick unless the file holds it; True if it was new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        known = {Trick.model_validate_json(line).id for line in path.read_text().splitlines()} if path.exists() else set()
        if trick.id in known:
            return False
        with path.open("a") as f:
            f.write(canonical_json(trick) + "\n")
            f.flush()
    return True


def load(path: Path) -> list[Trick]:
    """All tricks of a file, oldest first."""
    return [Trick.model_validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []
