"""The emitted source: deterministic, without names, one function per kind of phase, and right under odd placements."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from agents.merger import merge, pick
from agents.planner import expand, load_plan
from agents.skills import load_implementations
from sandbox.candidate import Implementation
from sandbox.checking import CheckPlan
from sandbox.errors import AssemblyError, IllegalPlan
from sandbox.evaluation import Status
from sandbox.judge import Judge, JudgeLimits
from sandbox.problem import Problem
from sandbox.stage_alone import stage_candidate

TINY = Problem.load("kimi_linear_decode", "tiny")
ALL = load_implementations()
LIMITS = JudgeLimits(timed=False, wall_s=120, step_s=20, checks=CheckPlan(seeds=1))


def oracles() -> dict[str, Implementation]:
    return pick(TINY.graph, ALL, "cpu", oracle=True)


def test_equal_content_gives_equal_bytes_and_names_do_not_matter() -> None:
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, 2)
    renamed = {n: m.model_copy(update={"name": "zzz", "author": "somebody"}) for n, m in oracles().items()}
    one = merge(TINY.graph, plan, oracles())
    other = merge(TINY.graph, plan.model_copy(update={"name": "other"}), renamed, name="other")
    assert one.source == other.source and one.id == other.id
    assert "zzz" not in other.source and "somebody" not in other.source


def test_layers_of_a_kind_share_one_function() -> None:
    source = merge(TINY.graph, load_plan(TINY.plan_file("fused"), TINY.graph, 2), oracles()).source
    functions = re.findall(r"^static bool (phase\d+_\w+)\(", source, re.M)
    # first KDA block (reads the token), later KDA blocks, experts, MLA, emit
    assert len(functions) == 5


def test_an_illegal_plan_is_not_assembled() -> None:
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, 2)
    phases = (plan.phases[0].model_copy(update={"barrier": False}), *plan.phases[1:])
    with pytest.raises(IllegalPlan, match="nothing orders it"):
        merge(TINY.graph, plan.model_copy(update={"phases": phases}), oracles())


def test_a_dropped_rounding_that_the_plan_does_not_list_is_illegal() -> None:
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, 2).model_copy(update={"dropped_roundings": ()})
    with pytest.raises(IllegalPlan, match="drops the rounding"):
        merge(TINY.graph, plan, oracles())


def test_an_implementation_that_does_not_fit_is_refused() -> None:
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, 2)
    with pytest.raises(AssemblyError, match="no implementation for L0.conv"):
        merge(TINY.graph, plan, {n: m for n, m in oracles().items() if n != "L0.conv"})
    wrong = oracles() | {"L0.conv": oracles()["L0.topk" if "L0.topk" in oracles() else "emit"]}
    with pytest.raises(AssemblyError, match="does not fit"):
        merge(TINY.graph, plan, wrong)


@pytest.mark.parametrize(("name", "blocks"), [("fused", 1), ("fused", 4), ("fused_flag", 3), ("unfused", 5)])
def test_other_thread_counts_are_right_too(judge: Judge, name: str, blocks: int) -> None:
    plan = load_plan(TINY.plan_file(name), TINY.graph, blocks)
    evaluation = judge.evaluate(merge(TINY.graph, plan, oracles(), flags=("-O1",)), TINY, LIMITS)
    assert evaluation.status is Status.PASSED, evaluation.log


def test_items_dealt_in_turn_are_right_too(judge: Judge) -> None:
    import yaml

    spec = yaml.safe_load(TINY.plan_file("unfused").read_text())
    for phases in spec["phases"].values():
        for phase in phases:
            for step in phase["steps"]:
                step["place"] = step["place"].replace("contiguous", "round_robin")
    plan = expand(spec, TINY.graph, 2, "cpu")
    evaluation = judge.evaluate(merge(TINY.graph, plan, oracles(), flags=("-O1",)), TINY, LIMITS)
    assert evaluation.status is Status.PASSED, evaluation.log


STAGES: Mapping[str, str] = {
    "L1.qkvg": "heads", "L1.o_proj": "rows", "L2.kda_state": "heads", "L3.attend": "head_groups", "L0.down": "slices",
}  # fmt: skip


@pytest.mark.parametrize(("node", "sharding"), STAGES.items())
def test_a_stage_alone_passes_in_any_order_of_items(judge: Judge, node: str, sharding: str) -> None:
    fast = pick(TINY.graph, ALL, "cpu")[node]
    items = TINY.graph.by_name[node].shardings[sharding].items
    order = [i ^ 1 if items % 2 == 0 else i for i in range(items)]
    candidate = stage_candidate(TINY.graph, node, sharding, fast, 2, order=order, flags=("-O1",))
    evaluation = judge.evaluate(candidate, TINY, JudgeLimits(wall_s=120, stage_repeats=3, checks=CheckPlan(seeds=1)))
    assert evaluation.status is Status.PASSED, evaluation.log
    assert evaluation.role == "stage" and evaluation.node == node


def test_a_stage_with_a_wrong_zero_point_is_refused_alone(judge: Judge) -> None:
    fast = pick(TINY.graph, ALL, "cpu")["L1.qkvg"]
    old = "std::byte(int(w.zero(k, column + lane)))"
    assert old in fast.source
    bad = fast.model_copy(update={"source": fast.source.replace(old, "std::byte(int(w.zero(k, column + lane)) ^ 1)")})
    candidate = stage_candidate(TINY.graph, "L1.qkvg", "heads", bad, 2, flags=("-O1",))
    evaluation = judge.evaluate(candidate, TINY, JudgeLimits(wall_s=120, timed=False, checks=CheckPlan(seeds=1)))
    assert evaluation.status is Status.WRONG
    assert "L1.qkvg" in evaluation.log
