"""Search for cheaper legal plans: a beam of rewrites, section by section, every plan on the way judged by the checker.

A price adds up over phases, and rewrites stay inside a section, so each section is searched by itself on the graph of one of
its layers (section_search.py), and the best of every section are put together; then the whole plan is expanded, checked and
priced again.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from agents.planner import sections
from agents.rewrites import Spec, apply_all, judge_spec, spec_id
from agents.section_search import Numerics, Price, SectionSearch, State, ask
from memory.change import Rewrite
from sandbox.errors import PlanError
from sandbox.graph import StageGraph
from sandbox.plan import Plan


@dataclass(frozen=True)
class FoundPlan:
    """A legal plan, what it should cost, and how it comes from the start."""

    spec: Spec
    plan: Plan
    price: float
    rewrites: tuple[Rewrite, ...]

    @property
    def id(self) -> str:
        """`spec_id` of its spec."""
        return spec_id(self.spec)


@dataclass
class PlanSearch:
    """What a search found. plans: legal, distinct in meaning, none of them the start or avoided, cheapest first.

    considered: specs that were priced (of sections, then whole ones); of those checked, how many were legal and refused.
    start_price: of the start; inf if it is not legal itself."""

    plans: list[FoundPlan] = field(default_factory=list)
    start_price: float = math.inf
    considered: int = 0
    legal: int = 0
    refused: int = 0

    @property
    def front(self) -> list[FoundPlan]:
        """The cheapest plan with each number of all-to-alls, fewest all-to-alls first."""
        best: dict[int, FoundPlan] = {}
        for found in self.plans:
            best.setdefault(found.plan.all_to_alls, found)
        return [best[n] for n in sorted(best)]


def search_plans(
    spec: Spec,
    graph: StageGraph,
    blocks: int,
    price: Price,
    *,
    beam: int = 6,
    depth: int = 12,
    limit: int = 600,
    seed: int = 0,
    numerics: Numerics | None = None,
    avoid: Container[str] = (),
) -> PlanSearch:
    """Cheaper legal plans, reached from `spec` by rewrites.

    price: seconds (or any cost that adds up over phases) of a plan; it is also asked about plans of one layer's section alone,
    whose nodes have the names of the graph. inf or PlanError: not a plan to use. limit: plans checked in each section; depth:
    rounds of the beam; seed: breaks ties. numerics: roundings that the nodes' implementations drop (rule i). avoid: spec ids
    that are not to be returned. Deterministic for its arguments.

    Raises PlanError if the spec cannot be expanded."""
    out = PlanSearch()
    plan, broken = judge_spec(spec, graph, blocks, numerics)
    out.start_price = math.inf if broken else ask(price, plan)
    weighted: list[tuple[int, list[State]]] = []
    for section in dict.fromkeys(s for s, _ in sections(graph)):
        search = SectionSearch(spec, section, graph, blocks, price, numerics or {}, f"{seed}/{section}")
        found = search.run(beam, depth, limit)
        out.considered += search.considered
        out.legal += search.legal
        out.refused += search.refused
        weighted.append((sum(s == section for s, _ in sections(graph)), found))
    seen = {spec_id(spec)}
    for rewrites in _combinations(weighted, 4 * beam):
        out.considered += 1
        try:
            whole = apply_all(spec, rewrites, graph, blocks)
            key = spec_id(whole)
            if key in seen or key in avoid:
                continue
            seen.add(key)
            plan, broken = judge_spec(whole, graph, blocks, numerics)
            cost = math.inf if broken else ask(price, plan)
        except PlanError:  # flags hold in every section that has a tensor of that name, and may not suit all of them
            cost = math.inf
        out.refused += math.isinf(cost)
        out.legal += math.isfinite(cost)
        if math.isfinite(cost):
            out.plans.append(FoundPlan(whole, plan, cost, rewrites))
    out.plans.sort(key=lambda f: (f.price, f.plan.all_to_alls, len(f.rewrites)))
    return out


def _combinations(weighted: Sequence[tuple[int, list[State]]], most: int) -> Iterator[tuple[Rewrite, ...]]:
    """Rewrites of the `most` cheapest ways to take one state of every section, and of as many with fewest all-to-alls."""
    for fewest in (False, True):
        ranked = []
        for weight, states in weighted:
            keyed = [((s.all_to_alls * weight if fewest else 0, s.price * weight), s) for s in states]
            ranked.append(sorted(keyed, key=lambda k: k[0]))
        for chosen in itertools.islice(_cheapest(ranked), most // 2 if fewest else most):
            # A flag holds in every section that has a tensor of that name: say it once.
            said = {(r.kind, r.subject) if r.kind in ("flag", "unflag") else r: r for s in chosen for r in s.rewrites}
            yield tuple(said.values())


def _cheapest(ranked: list[list[tuple[tuple[int, float], State]]]) -> Iterator[tuple[State, ...]]:
    """One state of every list, by rising sum of keys."""

    def key(at: tuple[int, ...]) -> tuple[int, float]:
        keys = [ranked[i][k][0] for i, k in enumerate(at)]
        return sum(k[0] for k in keys), sum(k[1] for k in keys)

    if not all(ranked):
        return
    start = (0,) * len(ranked)
    queue, seen = [(key(start), start)], {start}
    while queue:
        _, at = heapq.heappop(queue)
        yield tuple(ranked[i][k][1] for i, k in enumerate(at))
        for i, k in enumerate(at):
            after = (*at[:i], k + 1, *at[i + 1 :])
            if k + 1 < len(ranked[i]) and after not in seen:
                seen.add(after)
                heapq.heappush(queue, (key(after), after))


def enumerate_plans(
    spec: Spec, section: str, graph: StageGraph, blocks: int, price: Price, *, bound: int = 20_000, numerics: Numerics | None = None
) -> Iterator[FoundPlan]:
    """Every legal plan of one section of one layer by itself, cheapest first: all ways to cut its stages, in the spec's order,
    into phases, all splits, each stage repeated or dealt in runs. No flags, no other orders; no rewrites are named.

    The plans are of the section's own graph. Raises PlanError if there are more than `bound` to look at: then search."""
    search = SectionSearch(spec, section, graph, blocks, price, numerics or {}, "")
    queue: list[tuple[float, int, Spec, Plan]] = []
    for number, one in enumerate(search.everything(bound)):
        priced = search.priced(one)
        if priced is not None:
            queue.append((priced[1], number, one, priced[0]))
    heapq.heapify(queue)
    while queue:
        cost, _, one, plan = heapq.heappop(queue)
        if not search.broken(plan):
            yield FoundPlan(one, plan, cost, ())
