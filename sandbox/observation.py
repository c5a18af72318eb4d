"""Looking at a kernel that has no result: what its launches and device times are, although it did not pass.

An Evaluation carries no time unless it passed. An Observation is not an Evaluation: it enters no store, no memory and no
ranking, and says beside every number why there is no result.
"""

from __future__ import annotations

import contextlib
import statistics
from typing import TYPE_CHECKING

from sandbox.candidate import Candidate
from sandbox.problem import Problem
from sandbox.records import Frozen
from sandbox.timing import launches_per_step, one_chain

if TYPE_CHECKING:
    from sandbox.judge import Judge
    from sandbox.judgement import JudgeLimits

STEPS = (16, 48)
CHAINS = 5


class Observation(Frozen):
    """Seconds per step (slopes over chains of two lengths, medians in one process), and launches per step by kind where a device
    counts them. once_seconds: what a chain costs beside its steps, between device events."""

    candidate_name: str
    wall_seconds: float
    device_seconds: float | None
    once_seconds: float | None = None
    launches: dict[str, float] = {}


def observe(place: Judge, candidate: Candidate, problem: Problem, limits: JudgeLimits, rows: int) -> Observation:
    """Run chains of a candidate in one fresh box, under ordinary weights, and compare nothing. Raises what the child raises."""
    made, _ = place.made(candidate, problem, limits)
    few, many = STEPS
    with contextlib.closing(place.open(candidate, made, problem, limits)) as child:
        for n in STEPS:  # whatever compiles or adapts itself by position does so now
            one_chain(child, problem, n, rows, limits.wall_s)
        pairs = [[one_chain(child, problem, n, rows, limits.step_s)[0] for n in STEPS] for _ in range(CHAINS)]
        launches: dict[str, float] = {}
        if place.device is not None:
            counts = [one_chain(child, problem, n, rows, limits.step_s, profile=True)[0].launches or {} for n in STEPS]
            launches = launches_per_step((few, counts[0]), (many, counts[1]))
        device = once = None
        events = [(a.device_ns / 1e9, b.device_ns / 1e9) for a, b in pairs if a.device_ns is not None and b.device_ns is not None]
        if events:
            device = statistics.median((b - a) / (many - few) for a, b in events)
            once = statistics.median(b for _, b in events) - many * device
        return Observation(candidate_name=candidate.name, wall_seconds=statistics.median((b.seconds - a.seconds) / (many - few) for a, b in pairs),
                           device_seconds=device, once_seconds=once, launches=launches)  # fmt: skip
