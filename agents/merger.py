"""Braids stages into a megakernel: legality first, then assembly, then the same judge; a failure is bisected to its stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.skills import choose
from sandbox.assembly import assemble
from sandbox.candidate import Candidate, Implementation
from sandbox.checking import Prepared
from sandbox.evaluation import Evaluation, Purpose, Status
from sandbox.graph import StageGraph
from sandbox.judge import Judge, JudgeLimits
from sandbox.legality import require_legal
from sandbox.plan import Plan
from sandbox.problem import Problem

Choice = Mapping[str, Implementation]  # node -> implementation


def pick(graph: StageGraph, implementations: Sequence[Implementation], target: str, *, oracle: bool = False,
         best: Mapping[str, Implementation] | None = None) -> dict[str, Implementation]:  # fmt: skip
    """One implementation per node: `best` (by kind) where given, else the first fast one, or the scalar oracle."""
    chosen = {}
    for node in graph.nodes:
        preferred = (best or {}).get(node.kind)
        chosen[node.name] = preferred or choose(list(implementations), node.kind, target, oracle=oracle)
    return chosen


def merge(graph: StageGraph, plan: Plan, choice: Choice, *, name: str = "", flags: tuple[str, ...] = ()) -> Candidate:
    """Check the plan, emit the source, hand back a candidate like any other. Raises IllegalPlan or AssemblyError."""
    require_legal(plan, graph, numerics={node: impl.drops for node, impl in choice.items()})
    source = assemble(graph, plan, choice)
    return Candidate(role="solution", target=plan.target, source=source, threads=plan.blocks, plan=plan, flags=flags,
                     implementations={n: m.id for n, m in choice.items()}, name=name or plan.name)  # fmt: skip


@dataclass(frozen=True)
class Culprit:
    """What a bisection found: the implementation, and the nodes in which it fails. No implementation: the plan or the runtime."""

    implementation: str
    kind: str
    nodes: tuple[str, ...]
    evaluations: int


def failing(evaluation: Evaluation, checks: Sequence[Prepared]) -> list[Prepared]:
    """The checks to bisect on: two that came out wrong, or the first if it did not get as far as a comparison."""
    wrong = {c.probe for c in evaluation.cases if not c.ok}
    return [c for c in checks if c.name in wrong][:2] or list(checks[:1])


class Bisection:
    """Finds the guilty stage of a failing megakernel by swapping stages back to their oracles, on the same cases."""

    def __init__(self, judge: Judge, problem: Problem, plan: Plan, choice: Choice, oracles: Choice, limits: JudgeLimits,
                 checks: Sequence[Prepared], flags: tuple[str, ...] = ()) -> None:  # fmt: skip
        """checks: the cases the megakernel fails on, as in `failing`. limits: how one variant is judged (it is never timed)."""
        self.judge, self.problem, self.plan, self.flags = judge, problem, plan, flags
        self.choice, self.oracles, self.limits, self.checks = choice, oracles, dataclasses.replace(limits, timed=False), checks
        self.evaluations: list[Evaluation] = []

    def fails(self, suspects: Sequence[str]) -> bool:
        """Whether the megakernel fails when only `suspects` keep their implementation."""
        mixed = {n: self.choice[n] if n in suspects else self.oracles[n] for n in self.choice}
        candidate = merge(self.problem.graph, self.plan, mixed, name=f"bisect:{len(self.evaluations)}", flags=self.flags)
        evaluation = self.judge.evaluate(candidate, self.problem, self.limits, purpose=Purpose.BISECT, checks=self.checks)
        self.evaluations.append(evaluation)
        return evaluation.status is not Status.PASSED

    def find(self) -> list[Culprit]:
        """Every guilty implementation with the nodes it fails in; [] if the megakernel does not fail on these cases."""
        groups: dict[str, list[str]] = {}
        for node, impl in self.choice.items():
            if impl.id != self.oracles[node].id:
                groups.setdefault(impl.id, []).append(node)
        everything = [n for nodes in groups.values() for n in nodes]
        if not self.fails(everything):
            return []
        if self.fails([]):
            return [Culprit("", "plan or runtime", (), len(self.evaluations))]
        guilty = self._search(list(groups.values()))
        culprits = []
        for nodes in guilty:
            where = [n for part in self._search([[n] for n in nodes]) for n in part] if len(nodes) > 1 else nodes
            impl = self.choice[nodes[0]]
            culprits.append(Culprit(impl.name, impl.kind, tuple(sorted(where)), len(self.evaluations)))
        return culprits

    def _search(self, groups: list[list[str]]) -> list[list[str]]:
        """The groups that fail by themselves, found by halving; groups that fail only together come back together."""
        if len(groups) == 1:
            return groups
        half = len(groups) // 2
        found = []
        for part in (groups[:half], groups[half:]):
            if self.fails([n for g in part for n in g]):
                found += self._search(part)
        return found or [[n for g in groups for n in g]]
