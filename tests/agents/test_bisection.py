"""Faults in one stage, injected into the fast sources: the judge refuses the megakernel and the bisection names the stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.merger import Bisection, failing, merge, pick
from agents.planner import load_plan
from agents.skills import load_implementations
from sandbox.candidate import Implementation
from sandbox.checking import CheckPlan, prepare_checks
from sandbox.evaluation import Status
from sandbox.judge import Judge, JudgeLimits
from sandbox.problem import Problem

TINY = Problem.load("kimi_linear_decode", "tiny")
FAST = {m.name: m for m in load_implementations()}
LIMITS = JudgeLimits(timed=False, wall_s=120, step_s=30)
FLAGS = ("-O1",)  # a verdict on values does not need the optimiser, and it halves the compile time
CONVS = {"L0.conv", "L1.conv", "L2.conv"}

# what: implementation, text to find, text in its place, nodes that must be named (None: any of the kind)
FAULTS: dict[str, tuple[str, str, str, set[str] | None]] = {
    "wrong zero point": (
        "w4a16-gemv/digits",
        "std::byte(int(w.zero(k, column + lane)))",
        "std::byte(int(w.zero(k, column + lane)) ^ int(k < 128))",
        None,
    ),
    "skipped conv": ("kda-state/short-conv", "kb::silu16(sum)", "fresh", CONVS),
    "attention output zero": (
        "mla-attention/attend",
        "Path(scratch).run(run, p);",
        "Path(scratch).run(run, p); for (int i = 0; i < Cfg::GROUP * Cfg::LORA; i += 16) p.ctx.put16(size_t(i), kb::f32x16{});",
        {"L3.attend"},
    ),
    "stale S in layers 2 and 3": (
        "kda-state/one-pass",
        "if (!run.writer) continue;",
        "if (!run.writer || run.layer >= 1) continue;",
        {"L1.kda_state", "L2.kda_state"},
    ),
    "wrong expert weight": (
        "moe-router/rank",
        "p.w.put(size_t(t), w[t] * scale)",
        "p.w.put(size_t(t), w[(t + 1) % Cfg::T] * scale)",
        {"L0.topk", "L1.topk", "L2.topk", "L3.topk"},
    ),
    "k_rope not rotated": (
        "mla-attention/rope",
        "p.kr.put(size_t(2 * j), a * c[j] - b * s[j]);",
        "p.kr.put(size_t(2 * j), a);",
        {"L3.rope"},
    ),
    "window not shifted": ("kda-state/short-conv", "std::memcpy(row[0], row[1], 32);", "", CONVS),
    "one residual add lost": (
        "rmsnorm/add-norm",
        "const kb::f32x16 h = p.h_in.v16(at) + kb::sum_v16(p.ys, at);",
        "const kb::f32x16 h = run.layer == 2 && Cfg::NY == 2 ? p.h_in.v16(at) : p.h_in.v16(at) + kb::sum_v16(p.ys, at);",
        {"L2.attn_norm"},
    ),
}


def broken(what: str) -> Implementation:
    """The fast implementation with one fault in it."""
    name, old, new, _ = FAULTS[what]
    source = FAST[name].source
    assert old in source, f"the source of {name} has changed: the fault '{what}' no longer applies"
    source = source.replace(old, new)
    if "run.layer == 2" in new:
        source = source.replace("void begin(kb::Team, const kb::Launch&, int,", "void begin(kb::Team, const kb::Launch& run, int,")
    return FAST[name].model_copy(update={"source": source, "name": f"{name} ({what})"})


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_refused_and_its_stage_named(judge: Judge, tmp_path: Path, what: str) -> None:
    bad, expected = broken(what), FAULTS[what][3]
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, judge.threads)
    oracles = pick(TINY.graph, list(FAST.values()), "cpu", oracle=True)
    choice = {n: bad if m.kind == bad.kind and (expected or n.endswith(".qkvg")) else m for n, m in oracles.items()}
    checks = prepare_checks(TINY, judge.weights(TINY), CheckPlan(seeds=2), tmp_path)
    evaluation = judge.evaluate(merge(TINY.graph, plan, choice, flags=FLAGS), TINY, LIMITS, checks=checks)
    assert evaluation.status is Status.WRONG
    assert evaluation.log, "an agent must learn which tensor is wrong"
    bisection = Bisection(judge, TINY, plan, choice, oracles, LIMITS, failing(evaluation, checks), FLAGS)
    (culprit,) = bisection.find()
    assert culprit.implementation == bad.name
    assert culprit.nodes and set(culprit.nodes) <= (expected or {"L0.qkvg", "L1.qkvg", "L2.qkvg"})
    if what != "wrong expert weight":  # in one block alone it may lie within the bounds of the cases drawn
        assert set(culprit.nodes) == (expected or set(culprit.nodes))


def test_the_guilty_one_is_found_among_all_fast_stages(judge: Judge, tmp_path: Path) -> None:
    """The search as the main job runs it: every kind is fast, one of them is broken."""
    bad = broken("k_rope not rotated")
    plan = load_plan(TINY.plan_file("unfused"), TINY.graph, judge.threads)
    oracles = pick(TINY.graph, list(FAST.values()), "cpu", oracle=True)
    choice = pick(TINY.graph, list(FAST.values()), "cpu", best={bad.kind: bad})
    checks = prepare_checks(TINY, judge.weights(TINY), CheckPlan(seeds=1, probes=False), tmp_path)
    bisection = Bisection(judge, TINY, plan, choice, oracles, LIMITS, checks[:1], FLAGS)
    (culprit,) = bisection.find()
    assert (culprit.kind, culprit.nodes) == ("rope", ("L3.rope",))
    assert len(bisection.evaluations) <= 12


def test_an_honest_megakernel_has_no_culprit(judge: Judge, tmp_path: Path) -> None:
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, judge.threads)
    oracles = pick(TINY.graph, list(FAST.values()), "cpu", oracle=True)
    choice = {n: FAST["moe-router/rank"] if m.kind == "topk" else m for n, m in oracles.items()}
    checks = prepare_checks(TINY, judge.weights(TINY), CheckPlan(seeds=1, probes=False), tmp_path)
    assert Bisection(judge, TINY, plan, choice, oracles, LIMITS, checks, FLAGS).find() == []
