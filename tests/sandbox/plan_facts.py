"""What plan operators need to know about a plan, found by plain loops and without the checker that they test."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agents.planner import load_plan
from experiments.problems.kimi_linear_decode.definition import SIZES, TINY, Dims
from experiments.problems.kimi_linear_decode.graph import build_graph
from sandbox.graph import Node, StageGraph
from sandbox.plan import Buffer, EdgeSync, Phase, Plan, Step

PLANS = Path(__file__).parents[2] / "experiments/problems/kimi_linear_decode/plans"
FILES = ("unfused", "fused", "fused_flag")
DIMS: dict[str, Dims] = {
    **SIZES,
    "tiny_mla": Dims(**{**vars(TINY), "layers": ("mla",)}),
    "tiny_kda": Dims(**{**vars(TINY), "layers": ("kda",)}),
}
Box = tuple[int, int, int]  # block, lo, hi


def base(size: str, file: str, blocks: int, target: Literal["cpu", "cuda"] = "cpu") -> Case:
    """A plan file expanded for a size."""
    graph = build_graph(DIMS[size])
    return Case(load_plan(PLANS / f"{file}.yaml", graph, blocks, target), graph)


@dataclass(frozen=True)
class Case:
    """A plan with its graph, and questions about both."""

    plan: Plan
    graph: StageGraph

    # -- places ----------------------------------------------------------------------------------------------

    def sites(self) -> list[tuple[int, int, Step, Node]]:
        """(phase, index in phase, step, node) in order."""
        return [(p, i, s, self.graph.by_name[s.node]) for p, ph in enumerate(self.plan.phases) for i, s in enumerate(ph.steps)]

    def at(self) -> dict[str, tuple[int, int]]:
        """Node -> (phase, index in phase); pairs compare in program order."""
        return {s.node: (p, i) for p, i, s, _ in self.sites()}

    def step(self, node: str) -> Step:
        """The step of a node."""
        p, i = self.at()[node]
        return self.plan.phases[p].steps[i]

    def runners(self, step: Step) -> set[int]:
        """Blocks that run an item."""
        return set(range(self.plan.blocks)) if step.replicated else set(step.owner)

    def barrier_between(self, first: int, second: int) -> bool:
        """A barrier between two phases."""
        return any(ph.barrier for ph in self.plan.phases[first:second])

    def role(self, tensor: str) -> str:
        """Role of a tensor."""
        return self.graph.tensors[tensor].role

    def readers(self, tensor: str) -> list[str]:
        """Nodes that read a tensor."""
        return [n.name for n in self.graph.nodes if tensor in n.inputs.values()]

    def lifetime(self, tensor: str) -> tuple[int, int]:
        """First and last phase that touch an edge tensor."""
        at = self.at()
        phases = [at[n][0] for n in (self.graph.producers[tensor], *self.readers(tensor))]
        phases += [p for p, ph in enumerate(self.plan.phases) if tensor in ph.zero]
        return min(phases), max(phases)

    # -- who meets whom ----------------------------------------------------------------------------------------

    def boxes(self, step: Step, port: str) -> list[Box]:
        """What each block touches of an edge tensor through a port."""
        node = self.graph.by_name[step.node]
        sharding = node.shardings[step.sharding]
        box, size = sharding.boxes[port], self.graph.tensors[node.ports[port]].size
        out = []
        for item in range(sharding.items):
            lo, hi = (item * box.size, (item + 1) * box.size) if box.size else (0, size)
            blocks = range(self.plan.blocks) if step.replicated else (step.owner[item],)
            out += [(b, lo, hi) for b in blocks]
        return sorted(set(out))

    def crosses(self, edge: EdgeSync) -> bool:
        """Some block reads words that another block wrote (or zeroed, or added to a copy of)."""
        buffer = self.plan.buffers.get(edge.tensor)
        if buffer is not None and buffer.home == "private":
            return False
        writer, reader = self.step(edge.producer), self.step(edge.consumer)
        writes = self.boxes(writer, port_of(self.graph.by_name[edge.producer].outputs, edge.tensor))
        reads = self.boxes(reader, port_of(self.graph.by_name[edge.consumer].inputs, edge.tensor))
        return any(b != c and lo < end and start < hi for b, lo, hi in writes for c, start, end in reads)

    def bare(self, edge: EdgeSync) -> bool:
        """No barrier and no wait that could order the edge stands between producer and consumer."""
        at = self.at()
        (p, i), (q, j) = at[edge.producer], at[edge.consumer]
        if (p, i) > (q, j):
            return True
        between = [s for pp, ii, s, _ in self.sites() if (p, i) < (pp, ii) <= (q, j)]
        return not self.barrier_between(p, q) and not any(s.waits for s in between)

    def races(self) -> bool:
        """Some edge crosses blocks with nothing between: the plan cannot be legal."""
        return any(self.bare(e) and self.crosses(e) for e in self.plan.edges)

    # -- changed copies ----------------------------------------------------------------------------------------

    def but(self, **update: Any) -> Case:
        """With fields of the plan replaced."""
        return Case(self.plan.model_copy(update=update), self.graph)

    def with_phase(self, index: int, **update: Any) -> Case:
        """With one phase changed."""
        phases = list(self.plan.phases)
        phases[index] = phases[index].model_copy(update=update)
        return self.but(phases=tuple(phases))

    def with_step(self, node: str, **update: Any) -> Case:
        """With one step changed."""
        p, i = self.at()[node]
        steps = list(self.plan.phases[p].steps)
        steps[i] = steps[i].model_copy(update=update)
        return self.with_phase(p, steps=tuple(steps))

    def with_buffer(self, tensor: str, **update: Any) -> Case:
        """With one buffer changed."""
        changed = self.plan.buffers[tensor].model_copy(update=update)
        return self.but(buffers={**self.plan.buffers, tensor: changed})

    def with_homes(self, tensors: list[str], home: Literal["shared", "private"]) -> Case:
        """With tensors moved to another home, each in storage of its own."""
        new = {t: Buffer(tensor=t, home=home, storage=f"{t}/{home}") for t in tensors if t in self.plan.buffers}
        return self.but(buffers={**self.plan.buffers, **new})

    def with_kinds(self, kinds: dict[EdgeSync, str]) -> Case:
        """With edges claimed otherwise."""
        return self.but(edges=tuple(e.model_copy(update={"kind": kinds[e]}) if e in kinds else e for e in self.plan.edges))

    def moved(self, node: str, phase: int, index: int) -> Case:
        """With a step taken out and put into a phase at an index."""
        p, i = self.at()[node]
        step = self.plan.phases[p].steps[i]
        lists = [list(ph.steps) for ph in self.plan.phases]
        del lists[p][i]
        lists[phase].insert(index, step)
        phases = tuple(ph.model_copy(update={"steps": tuple(ls)}) for ph, ls in zip(self.plan.phases, lists, strict=True))
        return self.but(phases=phases)

    def owners(self, change: dict[str, tuple[int, ...]]) -> Case:
        """With owners of several steps replaced."""
        phases: list[Phase] = []
        for ph in self.plan.phases:
            steps = tuple(s.model_copy(update={"owner": change[s.node]}) if s.node in change else s for s in ph.steps)
            phases.append(ph.model_copy(update={"steps": steps}))
        return self.but(phases=tuple(phases))


def port_of(ports: dict[str, str], tensor: str) -> str:
    """First port that carries a tensor."""
    return next(p for p, t in ports.items() if t == tensor)


def pick(rng: random.Random, population: list[Any], count: int) -> list[Any]:
    """Up to `count` members, at random."""
    return rng.sample(population, min(count, len(population)))
