"""What a plan should cost, phase by phase, from the times of its stages alone. For ranking only: nothing is admitted by it.

The unit is one *item*. A stage alone was timed split over all blocks, so an item costs that time over the items of its
slowest block. A phase lasts as long as the block with the most to do, summed over the steps it runs, and ends with a barrier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandbox.candidate import Implementation
from sandbox.errors import PlanError
from sandbox.graph import Node, StageGraph
from sandbox.plan import Phase, Plan, Step

Roofline = Literal["memory-bound", "compute-bound", "latency-bound", "chain"]


@dataclass
class StageTimes:
    """Seconds of stages alone, split over all `blocks` in equal runs, by (slot, split, implementation id).

    `item_seconds` answers for any: measured; else what the same implementation took per work under another split of that
    stage; else the stage's bytes at the share of the read rate that one block has."""

    blocks: int
    measured: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def record(self, slot: str, split: str, implementation: str, seconds: float) -> None:
        """Remember a measured time; a later one replaces it."""
        self.measured[slot, split, implementation] = seconds

    def item_seconds(self, node: Node, split: str, implementation: str, bandwidth: float) -> float:
        """Seconds that one block needs for one item. bandwidth: bytes per second of all blocks together."""
        items = node.shardings[split].items
        alone = self.measured.get((node.short, split, implementation))
        if alone is not None:
            return alone / -(-items // self.blocks)
        for other, sharding in node.shardings.items():
            alone = self.measured.get((node.short, other, implementation))
            if alone is not None:
                return alone / -(-sharding.items // self.blocks) * sharding.items / items
        return node.bytes / items / (bandwidth / self.blocks)


@dataclass(frozen=True)
class PhaseModel:
    """Prices plans of one graph. barrier_seconds, flag_seconds: one barrier, one event that somebody waits for;
    bandwidth: bytes per second that all blocks read together."""

    graph: StageGraph
    times: StageTimes
    barrier_seconds: float
    bandwidth: float
    flag_seconds: float

    def price(self, plan: Plan, choices: Mapping[str, Implementation]) -> dict[str, float]:
        """Seconds by phase. choices: slot -> Implementation; a slot without one is priced by its bytes.

        Raises PlanError if a chosen Implementation does not run under the split that the plan asks for."""
        return {phase.name: self._phase(phase, plan.blocks, choices) for phase in plan.phases}

    def total(self, plan: Plan, choices: Mapping[str, Implementation]) -> float:
        """Seconds of the whole plan."""
        return sum(self.price(plan, choices).values())

    def _phase(self, phase: Phase, blocks: int, choices: Mapping[str, Implementation]) -> float:
        busy = [0.0] * blocks
        for step in phase.steps:
            item = self._item(step, choices)
            if step.replicated:
                items = self.graph.by_name[step.node].shardings[step.sharding].items
                busy = [b + item * items for b in busy]
            else:
                for owner in step.owner:
                    busy[owner] += item
        flags = {w.event for step in phase.steps for w in step.waits}
        return max(busy) + self.barrier_seconds * phase.barrier + self.flag_seconds * len(flags)

    def _item(self, step: Step, choices: Mapping[str, Implementation]) -> float:
        node = self.graph.by_name[step.node]
        chosen = choices.get(node.short)
        if chosen is not None and not chosen.accepts(step.sharding):
            raise PlanError(f"{step.node}: '{chosen.name}' does not run under the split '{step.sharding}'; it takes {chosen.shardings}")
        return self.times.item_seconds(node, step.sharding, chosen.id if chosen else "", self.bandwidth)


def roofline_class(node: Node, bandwidth: float, flops_per_second: float, barrier_seconds: float) -> Roofline:
    """What limits a stage on a machine that reads `bandwidth` bytes and does `flops_per_second` with all blocks.

    chain: no split has two items, so one block does it in sequence while the others wait or repeat it; latency-bound: its
    work takes less than the barrier that would share it out; else whichever of bytes and flops takes longer."""
    reading, computing = node.bytes / bandwidth, node.flops / flops_per_second
    if max(s.items for s in node.shardings.values()) == 1:
        return "chain"
    if max(reading, computing) < barrier_seconds:
        return "latency-bound"
    return "memory-bound" if reading >= computing else "compute-bound"
