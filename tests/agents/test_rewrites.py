"""Rewrites of plan specs: they change where things run, go back, and the checker has the last word."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.merger import merge, pick
from agents.planner import expand, read_plan
from agents.rewrites import Spec, apply, apply_all, is_legal, judge_spec, neighbours, spec_id
from agents.skills import load_implementations
from memory.change import Rewrite
from sandbox.checking import CheckPlan, prepare_checks
from sandbox.errors import PlanError
from sandbox.evaluation import Status
from sandbox.judge import Judge, JudgeLimits
from sandbox.problem import Problem

TINY = Problem.load("kimi_linear_decode", "tiny")
SMALL = Problem.load("kimi_linear_decode", "small")
CASES = [(problem, blocks) for problem in (TINY, SMALL) for blocks in (1, 2, 3)]
PLANS = ("unfused", "fused", "fused_flag")


def spec_of(name: str) -> Spec:
    return read_plan(TINY.plan_file(name))


def r(text: str) -> Rewrite:
    """`kind section/subject -> to`, as a rewrite prints itself."""
    head, _, to = text.partition(" -> ")
    kind, _, where = head.partition(" ")
    section, _, subject = where.partition("/")
    return Rewrite.model_validate({"kind": kind, "section": section, "subject": subject, "to": to})


def stages(spec: Spec, section: str) -> list[tuple[str, list[str]]]:
    return [(p["phase"], [s["stage"] for s in p["steps"]]) for p in spec["phases"][section]]


def rules(spec: Spec, blocks: int, problem: Problem = TINY) -> set[str]:
    return {v.rule for v in judge_spec(spec, problem.graph, blocks)[1]}


@pytest.mark.parametrize(("problem", "blocks"), CASES, ids=lambda p: getattr(p, "size", p))
@pytest.mark.parametrize("name", PLANS)
def test_every_neighbour_changes_the_spec_and_no_two_are_the_same(problem: Problem, blocks: int, name: str) -> None:
    start = spec_of(name)
    found = neighbours(start, problem.graph, blocks)
    results = [spec_id(apply(start, rewrite, problem.graph, blocks)) for rewrite in found]
    assert spec_id(start) not in results
    assert len(set(results)) == len(results) > 30
    expected = {
        "unfused": {"join", "split_phase", "move", "split", "place"},
        "fused": {"split_phase", "split", "place", "flag"},  # one phase each: nothing to join, nowhere to move to
        "fused_flag": {"split_phase", "split", "place", "flag", "unflag"},
    }
    assert {rewrite.kind for rewrite in found} == expected[name]


@pytest.mark.parametrize(
    ("rewrite", "back"),
    [
        ("join kda/projections", "split_phase kda/projections-conv -> conv"),
        ("split_phase moe/router -> s_up", "join moe/router"),
        ("split_phase mla/attend -> attend", "join mla/append"),
        ("move moe/s_up -> topk", "move moe/s_up -> router"),
        ("move moe/s_down -> router", "move moe/s_down -> topk"),
        ("move kda/beta -> conv", "move kda/beta -> projections"),
        ("split kda/o_proj -> rows", "split kda/o_proj -> columns"),
        ("split kda/beta -> whole", "split kda/beta -> rows"),
        ("place kda/attn_norm -> replicated", "place kda/attn_norm -> block 0"),
        ("place mla/q -> round_robin", "place mla/q -> contiguous"),
        ("flag mla/kva", "unflag mla/kva"),
    ],
)
def test_a_rewrite_and_its_inverse_are_nothing(rewrite: str, back: str) -> None:
    for problem, blocks in CASES[1:3] + CASES[4:]:
        start = spec_of("unfused")
        there = apply(start, r(rewrite), problem.graph, blocks)
        assert spec_id(there) != spec_id(start)
        again = apply(there, r(back), problem.graph, blocks)
        assert spec_id(again) == spec_id(start)
        assert is_legal(again, problem.graph, blocks) is not None


def test_the_start_is_left_as_it_was() -> None:
    start, untouched = spec_of("unfused"), spec_of("unfused")
    for rewrite in neighbours(start, TINY.graph, 2):
        apply(start, rewrite, TINY.graph, 2)
    assert start == untouched


@pytest.mark.parametrize(
    ("rewrites", "broken"),
    [
        ("join kda/norm", {"d"}),  # x is made by block 0 and read by all
        ("place kda/attn_norm -> replicated; join kda/norm", set()),
        ("join kda/conv", set()),  # a head stays in its block
        ("join kda/state", {"d"}),  # columns of o_proj need every head
        ("split kda/o_proj -> rows; join kda/state", set()),
        ("split kda/o_proj -> rows; place kda/o_proj -> replicated", {"c"}),  # every block would add every item
        ("place kda/kda_state -> replicated", {"e", "g"}),  # a state changes in place
        ("join kda/conv; place kda/conv -> round_robin", {"d"}),
        ("join kda/conv; place kda/conv -> round_robin; place kda/kda_state -> round_robin", set()),
        ("move mla/rope -> projections", {"d"}),
        ("flag mla/kva; move mla/rope -> projections", set()),
        ("move moe/topk -> up", {"d"}),
        ("place moe/topk -> replicated; join moe/topk", set()),
        ("join moe/norm", {"d"}),
        ("place mla/kv_a -> replicated; join mla/projections", set()),  # rope stays on block 0, the rest does not read it here
    ],
)
def test_the_checker_judges_what_comes_out(rewrites: str, broken: set[str]) -> None:
    for problem, blocks in CASES[1:3] + CASES[4:]:
        spec = apply_all(spec_of("unfused"), [r(t) for t in rewrites.split("; ")], problem.graph, blocks)
        found = rules(spec, blocks, problem)
        assert found == broken, (problem.size, blocks)
        assert (is_legal(spec, problem.graph, blocks) is None) == bool(broken)


def test_with_one_block_nearly_everything_can_be_joined() -> None:
    spec = spec_of("unfused")
    for section, count in (("kda", 4), ("mla", 5), ("moe", 4)):
        first = spec["phases"][section][0]["steps"][0]["stage"]
        spec = apply_all(spec, [Rewrite(kind="join", section=section, subject=first)] * count, TINY.graph, 1)
    plan = is_legal(spec, TINY.graph, 1)
    assert plan is not None and plan.all_to_alls == 8


def test_zero_lists_follow_what_is_added() -> None:
    spec = apply_all(spec_of("unfused"), [r("split kda/o_proj -> rows"), r("join kda/state")], TINY.graph, 2)
    assert [p.get("zero") for p in spec["phases"]["kda"]] == [None, None, None, ["y"]]
    spec = apply(spec, r("split kda/o_proj -> columns"), TINY.graph, 2)
    assert all("zero" not in p for p in spec["phases"]["kda"])
    # The file zeroes ys one phase early; a rewrite of the section puts it where s_down adds.
    spec = apply(spec, r("move moe/s_up -> topk"), TINY.graph, 2)
    assert [p.get("zero") for p in spec["phases"]["moe"]] == [None, None, ["ys"], None, ["yr"]]


def test_phases_are_named_by_name_or_stage_and_names_stay_apart() -> None:
    spec = apply(spec_of("unfused"), r("join mla/kv_a"), TINY.graph, 2)
    assert stages(spec, "mla")[1] == ("projections-absorb", ["q", "kv_a", "rope", "absorb"])
    spec = apply(spec, r("split_phase mla/rope -> absorb"), TINY.graph, 2)
    assert stages(spec, "mla")[1:3] == [("projections", ["q", "kv_a", "rope"]), ("absorb", ["absorb"])]
    spec = apply(spec, r("split_phase mla/projections -> rope"), TINY.graph, 2)
    spec = apply(spec, r("move mla/q -> absorb"), TINY.graph, 2)
    assert stages(spec, "mla")[1:4] == [("projections", ["kv_a"]), ("rope", ["rope"]), ("absorb", ["q", "absorb"])]
    names = [name for name, _ in stages(spec, "mla")]
    assert len(set(names)) == len(names)
    assert expand(spec, TINY.graph, 2, "cpu")


def test_a_move_goes_behind_its_producers_and_before_its_consumers() -> None:
    spec = apply(spec_of("unfused"), r("move kda/conv -> projections"), TINY.graph, 2)
    assert stages(spec, "kda")[1:3] == [("projections", ["qkvg", "beta", "conv"]), ("state", ["kda_state"])]
    spec = apply(spec_of("unfused"), r("move mla/q -> absorb"), TINY.graph, 2)
    assert stages(spec, "mla")[2] == ("absorb", ["q", "rope", "absorb"])
    assert not rules(spec, 2)


@pytest.mark.parametrize(
    ("rewrite", "says"),
    [
        ("join kda/o_proj", "last phase of its section"),
        ("join kda/nothing", "no phase 'nothing'"),
        ("join mlp/norm", "no section 'mlp'"),
        ("split_phase kda/norm -> attn_norm", "can only end before"),
        ("split_phase kda/projections -> conv", "can only end before"),
        ("move kda/conv -> conv", "runs in that phase already"),
        ("move kda/router -> conv", "no phase runs a stage 'router'"),
        ("split kda/o_proj -> diagonal", "no split 'diagonal'"),
        ("split kda/o_proj -> columns", "its split already"),
        ("split mla/attend -> head_groups", "its split already"),  # what the list in the file comes to
        ("place kda/conv -> contiguous", "where it runs already"),
        ("place kda/attn_norm -> contiguous", "where it runs already"),  # one item dealt in runs is block 0
        ("place kda/conv -> everywhere", "unknown place 'everywhere'"),
        ("place kda/conv -> block x", "unknown place 'block x'"),
        ("place kda/conv -> block 9", "the plan has 2 blocks"),
        ("flag kda/logits", "no stage of the section makes"),
        ("unflag mla/kva", "not flagged already"),
    ],
)
def test_nonsense_is_told_in_a_sentence(rewrite: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        apply(spec_of("unfused"), r(rewrite), SMALL.graph, 2)


def test_the_id_of_a_spec_is_its_meaning() -> None:
    spec = spec_of("fused")
    same: dict[str, Any] = {**spec, "plan": "other", "about": "", "dropped_roundings": []}
    same["phases"] = {s: [{**p, "phase": f"p{i}"} for i, p in enumerate(entries)] for s, entries in spec["phases"].items()}
    assert spec_id(same) == spec_id(spec)
    assert len({spec_id(spec_of(n)) for n in PLANS}) == 3
    assert spec_id({**spec, "flags": ["kva"]}) != spec_id(spec)


def wander(draw: random.Random, name: str, blocks: int, steps: int, only_legal: bool) -> tuple[Spec, list[Rewrite]]:
    """A random walk of rewrites from a plan file."""
    spec, taken = spec_of(name), list[Rewrite]()
    for _ in range(steps):
        rewrite = draw.choice(neighbours(spec, TINY.graph, blocks))
        after = apply(spec, rewrite, TINY.graph, blocks)
        if only_legal and is_legal(after, TINY.graph, blocks) is None:
            continue
        spec = after
        taken.append(rewrite)
    return spec, taken


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), name=st.sampled_from(PLANS), blocks=st.integers(1, 4), steps=st.integers(1, 12))
def test_random_walks_end_in_plans_or_refusals(seed: int, name: str, blocks: int, steps: int) -> None:
    spec, taken = wander(random.Random(seed), name, blocks, steps, only_legal=False)
    assert spec_id(apply_all(spec_of(name), taken, TINY.graph, blocks)) == spec_id(spec)
    try:
        plan, broken = judge_spec(spec, TINY.graph, blocks)
    except PlanError as error:
        assert "no flag is needed" in str(error)  # the one thing that the planner itself refuses here: a flag on repeated work
        return
    assert sorted(s.node for _, s in plan.steps()) == sorted(n.name for n in TINY.graph.nodes)
    added = [t for p in plan.phases for t in p.zero]
    assert sorted(added) == sorted(t for t, b in plan.buffers.items() if b.home == "partial")
    assert (is_legal(spec, TINY.graph, blocks) is None) == bool(broken)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["join", "split_phase", "move", "split", "place", "flag", "unflag"]),
    section=st.sampled_from(["kda", "mla", "moe", "end", "mlp"]),
    subject=st.sampled_from(["norm", "o_proj", "emit", "x", "kva", "s_up", "", "../x"]),
    to=st.sampled_from(["", "rows", "replicated", "block 1", "topk", "s_up", "conv", "block -1", "{}"]),
)
def test_any_rewrite_at_all_gives_a_spec_or_a_plan_error(kind: Any, section: str, subject: str, to: str) -> None:
    try:
        spec = apply(spec_of("unfused"), Rewrite(kind=kind, section=section, subject=subject, to=to), TINY.graph, 2)
        judge_spec(spec, TINY.graph, 2)
    except PlanError as error:
        assert str(error)


@pytest.mark.parametrize(("seed", "name"), [(1, "unfused"), (2, "fused_flag"), (4, "unfused")])
def test_a_random_legal_plan_computes_the_same_step(judge: Judge, tmp_path: Path, seed: int, name: str) -> None:
    spec, taken = wander(random.Random(seed), name, judge.threads, 25, only_legal=True)
    assert len(taken) >= 10
    plan = expand(spec, TINY.graph, judge.threads, "cpu")
    assert plan.id != expand(spec_of(name), TINY.graph, judge.threads, "cpu").id
    candidate = merge(TINY.graph, plan, pick(TINY.graph, load_implementations(), "cpu", oracle=True), flags=("-O0",))
    checks = prepare_checks(TINY, judge.weights(TINY), CheckPlan(seeds=1), tmp_path)
    evaluation = judge.evaluate(candidate, TINY, JudgeLimits(timed=False, wall_s=120, step_s=30), checks=checks[:3])
    assert evaluation.status is Status.PASSED, f"{evaluation.log}\n" + "\n".join(map(str, taken))
