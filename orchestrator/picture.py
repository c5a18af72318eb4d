"""The campaign's picture of the incumbent: what stands where, and how long each stage takes, as far as it was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents.brief import Brief, Recalled, SlotBrief, StageTime
from agents.phase_model import roofline_class
from memory.change import Choice, Rewrite
from sandbox.candidate import Candidate
from sandbox.evaluation import Evaluation
from sandbox.graph import StageGraph
from sandbox.plan import Plan

FLOPS_PER_BLOCK = 1e11  # assumed, for the roofline class that a brief states; nothing is decided by it
LEAST_BARRIER = 1e-7


@dataclass
class Incumbent:
    """The megakernel that a campaign has come to."""

    name: str
    choices: dict[str, Choice]
    rewrites: tuple[Rewrite, ...]
    candidate: Candidate
    evaluation: str = ""
    speedup: float = 1.0  # over the start: the product of the paired ratios on the way, an estimate


@dataclass
class Picture:
    """Times of stages in the start's stamps, moved by the paired ratios of stages alone."""

    graph: StageGraph
    blocks: int
    seconds: dict[tuple[str, str, str], float] = field(default_factory=dict)  # (slot, sharding, implementation id)
    barrier: float = 1e-5
    bandwidth: float = 3e10

    def __post_init__(self) -> None:
        self.nodes = {n.short: n for n in self.graph.nodes}
        self.counts = {s: sum(n.short == s for n in self.graph.nodes) for s in self.nodes}
        self.bytes = {s: sum(n.bytes for n in self.graph.nodes if n.short == s) for s in self.nodes}
        self.flops = {s: sum(n.flops for n in self.graph.nodes if n.short == s) for s in self.nodes}

    def learn_start(self, evaluation: Evaluation, plan: Plan, choices: Mapping[str, Choice]) -> None:
        """Take stage times, the cost of a barrier and the read rate from the start's stamps: a phase's time without its barrier
        is shared out among its stages by their bytes; over layers the median counts, because the first phase wakes the team."""
        times = evaluation.times
        if times is None or not times.phases:
            return
        phases = {p.name: p for p in plan.phases}
        parts: dict[tuple[str, str], list[float]] = {}
        for stamped in times.phases:
            steps = phases[stamped.name].steps
            weights = [256 + self.graph.by_name[s.node].bytes for s in steps]
            busy = max(0.0, stamped.stamped_us - stamped.sync_us) / 1e6
            for step, weight in zip(steps, weights, strict=True):
                slot = self.graph.by_name[step.node].short
                parts.setdefault((slot, step.sharding), []).append(busy * weight / sum(weights))
        for (slot, sharding), values in parts.items():
            self.seconds[slot, sharding, choices[slot].id] = statistics.median(values)
        self.learn_barrier(evaluation)
        if times.read_pass_share is not None:
            self.bandwidth = sum(self.bytes.values()) / (times.step_seconds.median * times.read_pass_share.median)

    def learn_barrier(self, evaluation: Evaluation) -> None:
        """The least that any megakernel paid for a barrier: what disturbs a measurement only ever makes it longer."""
        if evaluation.times is not None and evaluation.times.phases:
            seen = max(LEAST_BARRIER, statistics.median(p.sync_us for p in evaluation.times.phases) / 1e6)
            self.barrier = min(self.barrier, seen)

    def alone(self, slot: str, sharding: str, choice: Choice) -> float:
        """Seconds of one stage, measured or from its bytes."""
        known = self.seconds.get((slot, sharding, choice.id))
        return self.nodes[slot].bytes / self.bandwidth if known is None else known

    def learn(self, slot: str, sharding: str, choice: Choice, incumbent: Choice, ratio: float) -> None:
        """A stage alone was `ratio` times as fast as the incumbent's."""
        self.seconds[slot, sharding, choice.id] = self.alone(slot, sharding, incumbent) / ratio

    def times(self) -> tuple[StageTime, ...]:
        """All that is known, for briefs and prices."""
        return tuple(StageTime(slot=s, sharding=h, implementation=i, seconds=t) for (s, h, i), t in self.seconds.items())

    def brief(self, specialist: str, round_: int, problem: str, size: str, target: str, start: dict[str, Any], shardings: Mapping[str, str],
              incumbent: Incumbent, kinds: Sequence[str], want: int, tricks: tuple[Recalled, ...], refuted: tuple[str, ...],
              seconds_left: float) -> Brief:  # fmt: skip
        """What a specialist is told. kinds: those of its stages; () for all."""
        each = {s: self.alone(s, shardings[s], incumbent.choices[s]) * self.counts[s] for s in self.nodes}
        total = sum(each.values())
        slots = tuple(
            SlotBrief(
                slot=s, kind=n.kind, node=n.name, sharding=shardings[s], stages=self.counts[s], bytes=self.bytes[s], flops=self.flops[s],
                seconds=each[s], share=each[s] / total, incumbent=incumbent.choices[s],
                roofline=roofline_class(n, self.bandwidth, FLOPS_PER_BLOCK * self.blocks, self.barrier),
            )
            for s, n in self.nodes.items()
            if not kinds or n.kind in kinds
        )  # fmt: skip
        return Brief(
            specialist=specialist, round=round_, problem=problem, size=size, target=target, blocks=self.blocks, slots=slots, plan=start,
            rewrites=incumbent.rewrites, step_seconds=total, barrier_seconds=self.barrier, bandwidth=self.bandwidth, times=self.times(),
            tricks=tricks, refuted=refuted, want=want, seconds_left=seconds_left,
        )  # fmt: skip
