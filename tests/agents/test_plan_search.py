"""The search over plans: how far it gets from the unfused plan, against the hand-written ones and against all there are."""

from __future__ import annotations

import math

import pytest

from agents.phase_model import PhaseModel, StageTimes
from agents.plan_search import PlanSearch, enumerate_plans, search_plans
from agents.planner import load_plan, read_plan
from agents.rewrites import Spec, apply_all, is_legal, spec_id
from agents.section_search import Price, SectionSearch
from sandbox.errors import PlanError
from sandbox.legality import check_plan
from sandbox.plan import Plan
from sandbox.problem import Problem

TINY = Problem.load("kimi_linear_decode", "tiny")
SMALL = Problem.load("kimi_linear_decode", "small")


def priced(problem: Problem, blocks: int, barrier_us: float = 1.0, flag_us: float = 1.0) -> Price:
    """Every stage at 40 GB/s."""
    model = PhaseModel(problem.graph, StageTimes(blocks), barrier_us * 1e-6, 40e9, flag_us * 1e-6)
    return lambda plan: model.total(plan, {})


def spec_of(name: str) -> Spec:
    return read_plan(TINY.plan_file(name))


@pytest.fixture(scope="module")
def small() -> PlanSearch:
    return search_plans(spec_of("unfused"), SMALL.graph, 2, priced(SMALL, 2))


def test_from_unfused_it_gets_as_far_as_the_hand_written_plan(small: PlanSearch) -> None:
    price = priced(SMALL, 2)
    fused = load_plan(SMALL.plan_file("fused"), SMALL.graph, 2)
    assert small.start_price == pytest.approx(price(load_plan(SMALL.plan_file("unfused"), SMALL.graph, 2)))
    assert small.plans[0].price <= price(fused) < small.start_price
    fewest = small.front[0]
    assert fewest.plan.all_to_alls <= 8 and fewest.price <= price(fused)
    assert small.legal + small.refused <= 4 * 600 + 36 and small.considered >= small.legal > 0 < small.refused


def test_all_that_it_returns_is_legal_new_and_reached_by_its_rewrites(small: PlanSearch) -> None:
    start = spec_of("unfused")
    ids = [f.id for f in small.plans]
    assert len(set(ids)) == len(ids) > 5 and spec_id(start) not in ids
    assert [f.price for f in small.plans] == sorted(f.price for f in small.plans)
    for found in small.plans:
        assert spec_id(apply_all(start, found.rewrites, SMALL.graph, 2)) == found.id
        plan = is_legal(found.spec, SMALL.graph, 2)
        assert plan is not None and plan.id == found.plan.id
        assert found.price == pytest.approx(priced(SMALL, 2)(plan))
    counts = [f.plan.all_to_alls for f in small.front]
    assert counts == sorted(set(counts))


def test_it_is_the_same_twice_and_leaves_out_what_is_avoided() -> None:
    def run(seed: int, avoid: set[str] | None = None) -> list[str]:
        found = search_plans(spec_of("unfused"), TINY.graph, 2, priced(TINY, 2), limit=150, seed=seed, avoid=avoid or set())
        return [f.id for f in found.plans]

    first = run(3)
    assert run(3) == first
    assert set(run(3, set(first[:2]))).isdisjoint(first[:2])


def test_it_does_not_join_what_is_cheaper_apart() -> None:
    """Barriers for nothing: no plan is cheaper than the start by joining, so what repeats split work must not win."""
    found = search_plans(spec_of("unfused"), SMALL.graph, 2, priced(SMALL, 2, barrier_us=0.0, flag_us=0.0), limit=150)
    for best in found.plans[:1]:
        kv_a = next(s for _, s in best.plan.steps() if s.node == "L3.kv_a")
        assert not kv_a.replicated
        assert best.price <= found.start_price * (1 + 1e-9)


def test_what_has_no_price_is_not_returned() -> None:
    price = priced(TINY, 2)

    def no_rows(plan: Plan) -> float:
        if any(s.node.endswith("o_proj") and s.sharding == "rows" for _, s in plan.steps()):
            raise PlanError("not under this split")
        return price(plan)

    found = search_plans(spec_of("unfused"), TINY.graph, 2, no_rows, limit=200)
    assert found.plans and found.plans[0].price < found.start_price
    assert all(s.sharding == "columns" for f in found.plans for _, s in f.plan.steps() if s.node.endswith("o_proj"))


def test_a_start_without_a_price_is_left_behind() -> None:
    price = priced(TINY, 2)

    def only_rows(plan: Plan) -> float:
        bad = any(s.node.endswith("o_proj") and s.sharding != "rows" for _, s in plan.steps())
        return math.inf if bad else price(plan)

    found = search_plans(spec_of("unfused"), TINY.graph, 2, only_rows, limit=150)
    assert math.isinf(found.start_price) and found.plans
    assert all(s.sharding == "rows" for f in found.plans for _, s in f.plan.steps() if s.node.endswith("o_proj"))


def test_roundings_that_the_plan_does_not_list_are_refused() -> None:
    found = search_plans(spec_of("unfused"), TINY.graph, 2, priced(TINY, 2), limit=60, numerics={"L0.qkvg": ["a rounding of its own"]})
    assert not found.plans and math.isinf(found.start_price)


def test_it_starts_from_a_plan_with_flags_and_lists_of_splits_too() -> None:
    price = priced(SMALL, 3)
    for name in ("fused", "fused_flag"):
        start = load_plan(SMALL.plan_file(name), SMALL.graph, 3)
        found = search_plans(spec_of(name), SMALL.graph, 3, price, limit=200)
        assert found.start_price == pytest.approx(price(start))
        assert found.plans and found.plans[0].price <= found.start_price
        assert not check_plan(found.plans[0].plan, SMALL.graph)


def test_the_search_finds_the_best_of_all_plans_of_a_section() -> None:
    """Half of the kda section's 8192 plans are illegal; the search looks at a few hundred."""
    for problem, blocks, barrier in ((TINY, 2, 1.0), (SMALL, 3, 5.0)):
        price = priced(problem, blocks, barrier)
        best = next(enumerate_plans(spec_of("unfused"), "kda", problem.graph, blocks, price))
        search = SectionSearch(spec_of("unfused"), "kda", problem.graph, blocks, price, {}, "0")
        assert search.run(6, 12, 600)[0].price <= best.price * (1 + 1e-9)
        assert search.legal + search.refused <= 600


def test_a_section_with_too_many_plans_is_not_enumerated() -> None:
    with pytest.raises(PlanError, match="use search_plans"):
        next(enumerate_plans(spec_of("unfused"), "mla", TINY.graph, 2, priced(TINY, 2)))


def test_a_problem_without_experts_can_be_searched() -> None:
    problem = Problem.load("kimi_linear_decode", "kda_block")
    found = search_plans(spec_of("unfused"), problem.graph, 2, priced(problem, 2))
    assert found.front[0].plan.all_to_alls == 1 and len(found.front[0].plan.phases) == 2
