"""Plan files: what they expand to, and what they are told when they are wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from agents.planner import expand, load_plan, owners
from sandbox.errors import PlanError
from sandbox.plan import Plan
from sandbox.problem import Problem

TINY = Problem.load("kimi_linear_decode", "tiny")


def spec(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(TINY.plan_file(name).read_text()))


def test_the_unfused_plan_has_one_phase_per_topological_level() -> None:
    for size in ("tiny", "small", "full", "kda_block"):
        graph = Problem.load("kimi_linear_decode", size).graph
        plan = load_plan(TINY.plan_file("unfused"), graph, 2)
        assert [sorted(s.node for s in p.steps) for p in plan.phases] != []
        assert len(plan.phases) == len(graph.levels())
        level = {n: i for i, nodes in enumerate(graph.levels()) for n in nodes}
        for index, step in plan.steps():
            assert level[step.node] <= index, f"{step.node} runs before its level"


@pytest.mark.parametrize(("name", "all_to_alls"), [("unfused", 41), ("fused", 8), ("fused_flag", 9)])
def test_all_to_alls_count_barriers_and_flags_everybody_waits_for(name: str, all_to_alls: int) -> None:
    assert load_plan(TINY.plan_file(name), TINY.graph, 2).all_to_alls == all_to_alls


def test_the_id_of_a_plan_is_its_content() -> None:
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, 2)
    assert plan.id == plan.model_copy(update={"name": "other"}).id
    assert plan.id != load_plan(TINY.plan_file("fused"), TINY.graph, 1).id
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_contiguous_deals_equal_runs_and_round_robin_deals_in_turn() -> None:
    assert owners("contiguous", 8, 2, "") == (0, 0, 0, 0, 1, 1, 1, 1)
    assert owners("contiguous", 2, 4, "") == (0, 1)
    assert owners("round_robin", 5, 2, "") == (0, 1, 0, 1, 0)
    assert owners("block 1", 3, 2, "") == (1, 1, 1)


def change(path: list[Any], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(spec("fused"))
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["phases", "kda", 0, "steps", 2, "split"], "diagonal", "no split 'diagonal'"),
        (["phases", "kda", 0, "steps", 2, "place"], "everywhere", "unknown place 'everywhere'"),
        (["phases", "kda", 0, "steps", 2, "place"], "block 7", "the plan has 2 blocks"),
        (["phases", "kda", 0, "steps", 2, "stage"], "qkv", "no stage 'L0.qkv'"),
        (["phases", "kda", 0, "steps", 2], None, "not placed exactly once"),
        (["phases", "mla"], None, "says nothing about it"),
        (["phases", "mlp"], [], "unknown sections"),
        (["phases", "kda", 0, "steps", 2, "plase"], "x", "unknown keys"),
        (["phases", "kda", 0, "zeros"], ["y"], "unknown keys"),
        (["blocks"], 4, "unknown keys"),
    ],
)
def test_a_wrong_plan_file_is_told_what_is_wrong(path: list[Any], value: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        expand(change(path, value), TINY.graph, 2, "cpu", source="x.yaml")
