"""The search inside one section of a plan, on the graph of the section's last layer by itself (for plan_search.py).

A join is often illegal until a stage is repeated or split otherwise. So beside the beam of legal plans there is one of broken
plans: from those only rewrites of what the violations name are tried, and each must leave fewer violations. Rewrites that save
nothing by themselves survive in the first beam as the cheapest with their number of all-to-alls.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agents.planner import expand, sections
from agents.rewrites import Section, Spec, apply, neighbours, spec_id
from memory.change import Rewrite
from sandbox.errors import PlanError
from sandbox.graph import StageGraph
from sandbox.legality import Violation, check_plan
from sandbox.plan import Plan

Price = Callable[[Plan], float]
Numerics = Mapping[str, Sequence[str]]
REPAIRS = ("place", "split", "flag", "unflag")  # what can mend a broken plan; joins and moves break more, cuts only go back


@dataclass(frozen=True)
class State:
    """A spec of one section on the way. faults: rules that it breaks; named: stages and tensors that they speak of."""

    spec: Spec
    rewrites: tuple[Rewrite, ...]
    plan: Plan
    price: float
    faults: int = 0
    named: frozenset[str] = frozenset()

    @property
    def all_to_alls(self) -> int:
        """Of the section alone, without the barrier at its end."""
        return self.plan.all_to_alls


@dataclass(frozen=True)
class Child:
    """A state that is not checked yet, where it comes from, and a number drawn to break ties."""

    state: State
    parent: State
    tie: float


def ask(price: Price, plan: Plan) -> float:
    """The price; inf where it raises PlanError or is no number."""
    try:
        cost = price(plan)
    except PlanError:
        return math.inf
    return math.inf if math.isnan(cost) else cost


class SectionSearch:
    """One section of a spec, searched by itself. Counts what it looked at."""

    def __init__(self, spec: Spec, section: str, graph: StageGraph, blocks: int, price: Price, numerics: Numerics, seed: str) -> None:
        self.section, self.blocks, self.price, self.numerics, self.random = section, blocks, price, numerics, random.Random(seed)
        stages = [s["stage"] for p in spec["phases"][section] for s in p["steps"]]
        self.graph = section_graph(graph, section, stages)
        empty: dict[str, list[Spec]] = {s: [] for s in ("kda", "mla", "moe", "end")}
        made = {t.split(".", 1)[-1] for n in self.graph.nodes for t in n.outputs.values()}
        self.spec: Spec = {
            **spec,
            "phases": empty | {section: spec["phases"][section]},
            "flags": [f for f in spec.get("flags", ()) if f in made],
        }
        self.considered = self.legal = self.refused = 0

    def priced(self, spec: Spec) -> tuple[Plan, float] | None:
        """The section's plan and price, or None if it is no plan or not one to use."""
        self.considered += 1
        try:
            plan = expand(spec, self.graph, self.blocks, "cpu")
        except PlanError:
            return None
        cost = ask(self.price, plan)
        return (plan, cost) if math.isfinite(cost) else None

    def broken(self, plan: Plan) -> list[Violation]:
        """Rules that the section's plan breaks."""
        found = check_plan(plan, self.graph, numerics=self.numerics)
        self.legal += not found
        self.refused += bool(found)
        return found

    def judged(self, state: State) -> State:
        """The state with what the checker says."""
        found = self.broken(state.plan)
        words = {w for v in found for w in re.findall(r"[\w.]+", v.message)}
        known = words & (self.graph.by_name.keys() | self.graph.tensors.keys())
        return State(state.spec, state.rewrites, state.plan, state.price, len(found), frozenset(w.split(".", 1)[-1] for w in known))

    def run(self, beam: int, depth: int, limit: int) -> list[State]:
        """Legal states, the start among them if it is legal; cheapest first, and the cheapest with each number of all-to-alls."""
        plan = expand(self.spec, self.graph, self.blocks, "cpu")
        start = self.judged(State(self.spec, (), plan, ask(self.price, plan)))
        legal = [] if start.faults or math.isinf(start.price) else [start]
        seen, done = {spec_id(self.spec)}, set[int]()
        front, pool = [start], list[Child]()
        for _ in range(depth):
            pool += [c for s in front for c in self.children(s, seen)]
            # Repairs first: they are few, and one that costs more is still worth knowing. Then what saves something, then the rest.
            pool.sort(key=lambda c: (not c.parent.faults, c.state.price, c.tie))
            mended: list[State] = []
            idle, looked = 0, 0
            for child in pool:
                if self.legal + self.refused >= limit or idle >= beam:
                    break
                looked += 1
                saves = child.state.price < child.parent.price * (1 - 1e-9) or bool(child.parent.faults)
                state = self.judged(child.state)
                if not state.faults:
                    idle += not saves
                    legal.append(state)
                elif saves and not 0 < child.parent.faults <= state.faults:
                    mended.append(state)
            pool = pool[looked:]
            mended.sort(key=lambda s: (s.faults, s.price))
            fresh = [s for s in best(legal, beam, alike=2) if id(s) not in done]
            front = fresh + mended[:beam]
            done |= {id(s) for s in fresh}
            if not front and not pool or self.legal + self.refused >= limit:
                break
        return best(legal, 2 * beam)

    def children(self, state: State, seen: set[str]) -> Iterator[Child]:
        """What every rewrite of a state makes of it, where that is new; not yet checked."""
        places = {"replicated"} | {step.get("place") for p in state.spec["phases"][self.section] for step in p["steps"]}
        for rewrite in neighbours(state.spec, self.graph, self.blocks):
            if state.faults and not (rewrite.kind in REPAIRS and rewrite.subject in state.named):
                continue
            if state.faults and rewrite.kind == "place" and rewrite.to not in places:
                continue  # a deal that nothing else has brings nothing together
            spec = apply(state.spec, rewrite, self.graph, self.blocks)
            key = spec_id(spec)
            if key in seen:
                continue
            seen.add(key)
            priced = self.priced(spec)
            if priced is not None:
                yield Child(State(spec, (*state.rewrites, rewrite), *priced), state, self.random.random())

    def everything(self, bound: int) -> Iterator[Spec]:
        """Every way to cut the section's stages into phases, split each, and repeat it or deal it in runs; legal or not."""
        inner = Section(self.spec, self.section, self.graph, self.blocks)
        stages = [s["stage"] for p in inner.phases for s in p["steps"]]
        splits = [list(inner.node(s).shardings) for s in stages]
        size = 2 ** (2 * len(stages) - 1) * math.prod(map(len, splits))
        if size > bound:
            raise PlanError(f"section '{self.section}' has {size} plans, more than {bound}: use search_plans, or raise the bound")
        choices = [[(split, place) for split in options for place in ("contiguous", "replicated")] for options in splits]
        for cut in itertools.product((False, True), repeat=len(stages) - 1):
            for chosen in itertools.product(*choices):
                inner.phases = []
                for stage, new, (split, place) in zip(stages, (True, *cut), chosen, strict=True):
                    if new:
                        inner.phases.append({"phase": stage, "steps": []})
                    inner.phases[-1]["steps"].append({"stage": stage, "split": split, "place": place})
                inner.rezero()
                yield {**self.spec, "phases": {**self.spec["phases"], self.section: inner.phases}}


def section_graph(graph: StageGraph, section: str, stages: Sequence[str]) -> StageGraph:
    """The named stages in the section's last layer by themselves; what other sections make are inputs of the step."""
    layer = max((layer for s, layer in sections(graph) if s == section), default=None)
    if layer is None:
        raise PlanError(f"the graph has no section '{section}'; it has {sorted({s for s, _ in sections(graph)})}")
    names = set(stages) | {f"L{layer}.{s}" for s in stages}
    nodes = tuple(n for n in graph.nodes if n.name in names)
    made = {t for n in nodes for t in n.outputs.values()}
    tensors = {}
    for tensor in dict.fromkeys(t for n in nodes for t in n.ports.values()):
        decl = graph.tensors[tensor]
        outside = decl.role == "edge" and tensor not in made
        tensors[tensor] = decl.model_copy(update={"role": "input"}) if outside else decl
    return StageGraph(name=f"{graph.name}:{section}", tensors=tensors, nodes=nodes)


def best(legal: Sequence[State], most: int, alike: int = 1) -> list[State]:
    """The cheapest `most` states, and the cheapest with each number of all-to-alls. Of states that price and number of
    all-to-alls cannot tell apart, `alike` are taken, those of the fewest rewrites."""
    kept: list[State] = []
    like: Counter[tuple[str, int]] = Counter()
    numbers: set[int] = set()
    for state in sorted(legal, key=lambda s: (s.price, s.all_to_alls, len(s.rewrites))):
        look = f"{state.price:.9e}", state.all_to_alls
        if like[look] < alike and (len(kept) < most or state.all_to_alls not in numbers):
            kept.append(state)
            like[look] += 1
            numbers.add(state.all_to_alls)
    return kept
