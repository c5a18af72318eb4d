"""The built-in proposer for plans: rewrites of the incumbent's plan, priced by the phase model, the checker judging each."""

from __future__ import annotations

from collections.abc import Sequence

from agents.brief import Brief, Proposal
from agents.phase_model import PhaseModel, StageTimes
from agents.plan_search import FoundPlan, search_plans
from agents.rewrites import apply_all, is_legal, spec_id
from agents.skills import Offer
from memory.change import Change, Rewrite
from sandbox.candidate import Implementation
from sandbox.errors import PlanError
from sandbox.graph import StageGraph
from sandbox.problem import Problem


class PlanTuner:
    """Remembers which plans it has proposed, so that none is proposed twice in a campaign."""

    def __init__(self, specialist: str, seed: int) -> None:
        self.specialist, self.seed = specialist, seed
        self.proposed: set[str] = set()

    def ask(self, brief: Brief, offers: Sequence[Offer]) -> tuple[list[Proposal], dict[str, float]]:
        """At most `brief.want` plans: first those that memory suggests, then the cheapest by price; and what was looked at."""
        graph = Problem.load(brief.problem, brief.size).graph
        chosen = implementations(brief, offers)
        model = PhaseModel(graph, _times(brief), brief.barrier_seconds, brief.bandwidth, brief.barrier_seconds)
        numerics = {n.name: chosen[n.short].drops for n in graph.nodes if n.short in chosen}
        incumbent = apply_all(brief.plan, brief.rewrites, graph, brief.blocks)
        start = is_legal(incumbent, graph, brief.blocks, numerics)
        here = model.total(start, chosen) if start is not None else 0.0
        self.proposed.add(spec_id(incumbent))
        out: list[Proposal] = []
        for trick in brief.tricks:
            rewrites = trick.change.rewrites
            if rewrites and len(out) < brief.want and self._remembered(brief, rewrites, graph, numerics):
                out.append(self._proposal(brief, rewrites, "memory suggests it", 1.0, (trick.id,)))
        found_plans = search_plans(
            incumbent, graph, brief.blocks, lambda plan: model.total(plan, chosen), seed=self.seed, numerics=numerics, avoid=self.proposed
        )
        for found in self._spread(found_plans.plans, found_plans.front):
            if len(out) >= brief.want:
                break
            if found.price >= here:
                continue
            rewrites = (*brief.rewrites, *found.rewrites)
            if found.id in self.proposed or Change(rewrites=rewrites).id in brief.refuted:
                continue
            self.proposed.add(found.id)
            why = f"{found.plan.all_to_alls} all-to-alls; priced {1e6 * found.price:.0f} us against {1e6 * here:.0f} us"
            out.append(self._proposal(brief, rewrites, why, here / found.price, ()))
        best = found_plans.plans[0].price if found_plans.plans else here
        return out, {"considered": found_plans.considered, "legal": found_plans.legal, "refused": found_plans.refused,
                     "best_us": 1e6 * best, "incumbent_us": 1e6 * here}  # fmt: skip

    def _remembered(self, brief: Brief, rewrites: tuple[Rewrite, ...], graph: StageGraph, numerics: dict[str, tuple[str, ...]]) -> bool:
        """Whether remembered rewrites make sense on the start plan and give a legal, new one; it then counts as proposed."""
        try:
            spec = apply_all(brief.plan, rewrites, graph, brief.blocks)
            if spec_id(spec) in self.proposed or is_legal(spec, graph, brief.blocks, numerics) is None:
                return False
        except PlanError:
            return False
        self.proposed.add(spec_id(spec))
        return True

    @staticmethod
    def _spread(plans: Sequence[FoundPlan], front: Sequence[FoundPlan]) -> list[FoundPlan]:
        """The cheapest plan, then the cheapest with other numbers of all-to-alls (the price of one is what the model knows
        least), then the rest by price."""
        order = [*plans[:1], *sorted(front, key=lambda f: f.price), *plans]
        return list({f.id: f for f in order}.values())

    def _proposal(self, brief: Brief, rewrites: tuple[Rewrite, ...], why: str, predicted: float, used: tuple[str, ...]) -> Proposal:
        return Proposal(specialist=self.specialist, proposer="tuner", change=Change(rewrites=rewrites), why=why, predicted=predicted,
                        shown=tuple(t.id for t in brief.tricks), used=used)  # fmt: skip


def implementations(brief: Brief, offers: Sequence[Offer]) -> dict[str, Implementation]:
    """Slot -> the incumbent's Implementation."""
    known = {o.implementation.name: o for o in offers}
    return {s.slot: known[s.incumbent.implementation].with_knobs(**s.incumbent.knobs) for s in brief.slots}


def _times(brief: Brief) -> StageTimes:
    times = StageTimes(brief.blocks)
    for t in brief.times:
        times.record(t.slot, t.sharding, t.implementation, t.seconds)
    return times
