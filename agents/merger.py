"""Braids stages into a megakernel: legality first, then assembly, then the same judge; a failure is bisected to its stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.brief import StageTime
from agents.phase_model import PhaseModel, StageTimes
from agents.planner import expand, read_plan
from agents.rewrites import Spec, apply_all
from agents.skills import Offer, SkillError, choose, load_offers, plain
from memory.change import Choice, Rewrite
from sandbox.assembly import assemble
from sandbox.candidate import Candidate, Implementation, Target
from sandbox.checking import Prepared
from sandbox.evaluation import Evaluation, Purpose, Status
from sandbox.graph import StageGraph
from sandbox.judge import Judge, JudgeLimits
from sandbox.legality import require_legal
from sandbox.plan import Plan
from sandbox.problem import Problem
from sandbox.stage_alone import stage_candidate

Chosen = Mapping[str, Implementation]  # node -> implementation


def pick(graph: StageGraph, implementations: Sequence[Implementation], target: str, *, oracle: bool = False,
         best: Mapping[str, Implementation] | None = None) -> dict[str, Implementation]:  # fmt: skip
    """One implementation per node: `best` (by kind) where given, else the first fast one, or the scalar oracle."""
    chosen = {}
    for node in graph.nodes:
        preferred = (best or {}).get(node.kind)
        chosen[node.name] = preferred or choose(list(implementations), node.kind, target, oracle=oracle)
    return chosen


def merge(graph: StageGraph, plan: Plan, choice: Chosen, *, name: str = "", flags: tuple[str, ...] = ()) -> Candidate:
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

    def __init__(self, judge: Judge, problem: Problem, plan: Plan, choice: Chosen, oracles: Chosen, limits: JudgeLimits,
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


class Merger:
    """Resolves choices to sources and braids them with a plan into a candidate; knows one problem at one size."""

    def __init__(self, problem: str, size: str, blocks: int, roots: Sequence[Path], target: Target = "cpu") -> None:
        self.problem, self.blocks, self.target = Problem.load(problem, size), blocks, target
        self.offers = {o.implementation.name: o for o in load_offers(roots)}
        self.graph = self.problem.graph
        self.slots = {n.short: n for n in self.graph.nodes}  # the last layer that has the stage

    def spec(self, plan: str) -> Spec:
        """A plan file of the problem, as a dict."""
        return read_plan(self.problem.plan_file(plan))

    def start(self) -> dict[str, Choice]:
        """Slot -> the plain implementation of its kind at default knobs: where a campaign begins."""
        return {s: Choice.of(plain(list(self.offers.values()), n.kind, self.target)) for s, n in self.slots.items()}

    def by_hand(self, spec: Spec) -> dict[str, Choice]:
        """Slot -> what the plan file itself names for the kind under `implementations`, else the plain one."""
        named = {kind: Choice.of(self.offer(name).implementation) for kind, name in spec.get("implementations", {}).items()}
        return {s: named.get(self.slots[s].kind, choice) for s, choice in self.start().items()}

    def offer(self, name: str) -> Offer:
        """What the skills offer under a name. Raises SkillError."""
        if name not in self.offers:
            raise SkillError(f"no implementation '{name}' in the skills; they have {sorted(self.offers)}")
        return self.offers[name]

    def implementation(self, choice: Choice) -> Implementation:
        """The source of a choice. Raises SkillError if the skills no longer hold what was chosen."""
        found = self.offer(choice.implementation).with_knobs(**choice.knobs)
        if found.id != choice.id:
            raise SkillError(f"'{choice.implementation}' is not what it was when it was chosen: its source has changed")
        return found

    def resolve(self, choices: Mapping[str, Choice]) -> dict[str, Implementation]:
        """Node -> Implementation."""
        by_slot = {slot: self.implementation(choice) for slot, choice in choices.items()}
        return {n.name: by_slot[n.short] for n in self.graph.nodes}

    def braid(self, spec: Spec, choices: Mapping[str, Choice], name: str) -> Candidate:
        """The megakernel of a plan and a choice per slot. Raises PlanError, IllegalPlan or AssemblyError."""
        plan = expand(spec, self.graph, self.blocks, self.target, source=name)
        return merge(self.graph, plan, self.resolve(choices), name=name)

    def alone(self, slot: str, sharding: str, choice: Choice) -> Candidate:
        """One stage by itself, at the last layer that has it."""
        return stage_candidate(self.graph, self.slots[slot].name, sharding, self.implementation(choice), self.blocks)

    def rewritten(self, spec: Spec, rewrites: Sequence[Rewrite]) -> Spec:
        """A plan after rewrites. Raises PlanError where they make no sense."""
        return apply_all(spec, rewrites, self.graph, self.blocks)

    def shardings(self, spec: Spec) -> dict[str, str]:
        """Slot -> how the plan splits it (in the last layer that has it)."""
        plan = expand(spec, self.graph, self.blocks, self.target)
        return {self.graph.by_name[s.node].short: s.sharding for _, s in plan.steps()}

    def known(self) -> dict[str, set[str]]:
        """Implementation name -> the ids of all its variants: what memory may still ask for."""
        return {name: {m.id for m in o.variants()} for name, o in self.offers.items()}

    def oracles(self) -> dict[str, Choice]:
        """Slot -> the scalar oracle of its kind."""
        offered = [o.implementation for o in self.offers.values()]
        return {s: Choice.of(choose(offered, n.kind, self.target, oracle=True)) for s, n in self.slots.items()}

    def price(
        self, plan: Plan, choices: Mapping[str, Choice], times: Sequence[StageTime], barrier: float, bandwidth: float
    ) -> dict[str, float]:
        """Predicted seconds by phase, from what is known of the stages."""
        known = StageTimes(self.blocks)
        for t in times:
            known.record(t.slot, t.sharding, t.implementation, t.seconds)
        chosen = {slot: self.implementation(choice) for slot, choice in choices.items()}
        return PhaseModel(self.graph, known, barrier, bandwidth, barrier).price(plan, chosen)
