"""The only door, with real candidates: an honest one, and hostile ones that must end as their status within their limit."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from agents.merger import merge, pick
from agents.planner import load_plan
from agents.skills import load_implementations
from sandbox.candidate import Candidate
from sandbox.checking import CheckPlan
from sandbox.evaluation import Standing, Status
from sandbox.judge import Judge, JudgeLimits
from sandbox.problem import Problem
from sandbox.timing import Effort

TINY = Problem.load("kimi_linear_decode", "tiny")
CHECK_ONLY = JudgeLimits(timed=False, wall_s=60, step_s=10, checks=CheckPlan(seeds=2, probes=False, short_context=False))

ABI = """
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
struct kb_tensor { const char* name; void* data; uint64_t bytes; };
#define API extern "C" __attribute__((visibility("default")))
static uint64_t steps;
API const char* kb_abi() { return "kernelbraid-step-1"; }
API void* kb_create(const kb_tensor*, int32_t, int32_t, const int32_t*, int32_t, char* err, int32_t n) { CREATE; return &steps; }
API int32_t kb_bind(void*, const kb_tensor*, int32_t, char*, int32_t) { return 0; }
API int32_t kb_step(void*, int64_t) { ++steps; STEP; return 0; }
API int32_t kb_step_until(void* h, int64_t p, int32_t) { return kb_step(h, p); }
API uint64_t kb_dispatches(void*) { return steps; }
API const char* kb_describe(void*) { return "{}"; }
API void kb_destroy(void*) {}
"""


def hostile(step: str = "", create: str = "") -> Candidate:
    source = ABI.replace("CREATE;", f"{create};").replace("STEP;", f"{step};")
    return Candidate(role="solution", target="cpu", source=source, threads=1)


@pytest.mark.parametrize(
    ("step", "status", "says"),
    [
        ("*(volatile int*)8 = 1", Status.CRASH, "SIGSEGV"),
        ("for (volatile int i = 0;; ++i) {}", Status.HANG, "did not answer"),
        ("for (;;) if (fork() == 0) for (;;) pause()", Status.HANG, ""),
        (
            "for (uint64_t g = 0; g < 100; ++g) { char* p = (char*)malloc(1ull << 30); if (!p) abort();"
            " for (uint64_t i = 0; i < 1ull << 30; i += 4096) p[i] = 1; }",
            Status.LIMIT,
            "memory",
        ),
        ("", Status.WRONG, "hidden"),
        ("return 7", Status.RULE_BROKEN, "returned 7"),
        ("_exit(97)", Status.CRASH, "exit code 97"),
        ("write(1, \"{\\\"ok\\\": true}\\n\", 13)", Status.WRONG, "hidden"),
    ],
)  # fmt: skip
def test_a_hostile_candidate_ends_as_its_status(judge: Judge, step: str, status: Status, says: str) -> None:
    limits = JudgeLimits(timed=False, wall_s=30, step_s=4, memory_bytes=1 << 30, checks=CHECK_ONLY.checks)
    before = children()
    started = time.monotonic()
    evaluation = judge.evaluate(hostile(step), TINY, limits)
    assert (evaluation.status, says in evaluation.log) == (status, True), evaluation.log
    assert evaluation.times is None
    assert time.monotonic() - started < 45
    assert children() <= before, "something outlived its box"


def children() -> set[str]:
    """Processes of this machine that run a child (forks of a candidate keep its command line)."""
    found = set()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and b"child.py" in (folder / "cmdline").read_bytes():
                found.add(folder.name)
    return found


def test_what_does_not_compile_is_a_compile_error_with_the_log(judge: Judge) -> None:
    evaluation = judge.evaluate(Candidate(role="solution", target="cpu", source="int f( {"), TINY, CHECK_ONLY)
    assert evaluation.status is Status.COMPILE_ERROR
    assert "error" in evaluation.log


def test_a_forbidden_flag_is_refused(judge: Judge) -> None:
    bad = Candidate(role="solution", target="cpu", source="int x;", flags=("-fplugin=/tmp/x.so",))
    assert judge.evaluate(bad, TINY, CHECK_ONLY).status is Status.COMPILE_ERROR


def test_refusing_the_weights_is_said_in_the_candidates_words(judge: Judge) -> None:
    evaluation = judge.evaluate(hostile(create='strcpy(err, "zero point 0.5"); return nullptr'), TINY, CHECK_ONLY)
    assert evaluation.status is Status.RULE_BROKEN
    assert "zero point 0.5" in evaluation.log


def test_the_environment_of_the_parent_is_not_visible(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cret-value")
    look = 'if (getenv("SOME_API_KEY") || system("grep -q s3cret-value /proc/*/environ 2>/dev/null") == 0) return 9'
    evaluation = judge.evaluate(hostile(look), TINY, CHECK_ONLY)
    assert evaluation.status is Status.WRONG, evaluation.log


def test_an_honest_megakernel_is_timed_and_confirmed(judge: Judge) -> None:
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, judge.threads)
    candidate = merge(TINY.graph, plan, pick(TINY.graph, load_implementations(), "cpu"))
    limits = JudgeLimits(checks=CheckPlan(seeds=2), effort=Effort(processes=5, pairs=3, read_pairs=5), rivals=("baseline",))
    evaluation = judge.evaluate(candidate, TINY, limits)
    assert evaluation.status is Status.PASSED, evaluation.log
    assert evaluation.times is not None
    assert evaluation.standing in (Standing.CONFIRMED, Standing.QUARANTINED), "quarantined only if the machine was too noisy"
    assert evaluation.dispatches_per_step == 1.0 and evaluation.dispatch_evidence == "runtime"
    assert {p.name for p in evaluation.times.phases} >= {"kda0.heads", "moe3.experts", "emit"}
    assert evaluation.times.vs["baseline"].processes == 5
    assert {c.probe for c in evaluation.cases} >= {"ordinary", "short_context", "o_proj_x100", "one_expert"}


def test_every_case_is_fresh(judge: Judge) -> None:
    seeds = [
        {c.seed for c in judge.evaluate(hostile(), TINY, CHECK_ONLY).cases}
        for _ in range(2)
    ]  # fmt: skip
    assert not seeds[0] & seeds[1]


def test_a_forged_dispatch_count_above_the_policy_breaks_the_rule(judge: Judge) -> None:
    """More than one dispatch per step is refused even if every value is right."""
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, judge.threads)
    candidate = merge(TINY.graph, plan, pick(TINY.graph, load_implementations(), "cpu", oracle=True))
    twice = candidate.source.replace("return crew_.dispatches(); }", "return 2 * crew_.dispatches(); }")
    assert twice != candidate.source
    evaluation = judge.evaluate(candidate.model_copy(update={"source": twice}), TINY, CHECK_ONLY)
    assert evaluation.status is Status.RULE_BROKEN
    assert "2.0 dispatches per step" in evaluation.log


DESCRIBE = "KB_API const char* kb_describe(void* h) { return static_cast<kb::Program*>(h)->description.c_str(); }"
STAMPS = "KB_API int32_t kb_stamps(void* h, uint64_t* ns, int32_t capacity) { return static_cast<kb::Program*>(h)->stamps(ns, capacity); }"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (DESCRIBE, 'KB_API const char* kb_describe(void*) { return "oops"; }'),
        (DESCRIBE, 'KB_API const char* kb_describe(void*) { return "{}"; }'),
        (DESCRIBE, "KB_API const char* kb_describe(void*) { return nullptr; }"),
        (DESCRIBE, "KB_API const char* kb_describe(void*) { static std::string s(500000, '['); return s.c_str(); }"),
        (DESCRIBE, 'KB_API const char* kb_describe(void*) { return "{\\"blocks\\":1e999,\\"phases\\":[]}"; }'),
        (STAMPS, "KB_API int32_t kb_stamps(void*, uint64_t*, int32_t) { return 0; }"),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_status_too(judge: Judge, old: str, new: str) -> None:
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, judge.threads)
    candidate = merge(TINY.graph, plan, pick(TINY.graph, load_implementations(), "cpu", oracle=True), flags=("-O1",))
    assert old in candidate.source
    liar = candidate.model_copy(update={"source": candidate.source.replace(old, new)})
    limits = JudgeLimits(checks=CheckPlan(seeds=1, probes=False, short_context=False), effort=Effort(processes=1, pairs=1, read_pairs=2))
    evaluation = judge.evaluate(liar, TINY, limits)
    assert evaluation.status in (Status.RULE_BROKEN, Status.CHEATING), evaluation.log
    assert "makes no sense" in evaluation.log


def test_odd_candidates_are_statuses_not_exceptions(judge: Judge) -> None:
    odd = hostile()
    assert judge.evaluate(odd.model_copy(update={"role": "stage", "node": "nope"}), TINY, CHECK_ONLY).status is Status.COMPILE_ERROR
    assert judge.evaluate(odd.model_copy(update={"target": "cuda"}), TINY, CHECK_ONLY).status is Status.UNAVAILABLE


def test_what_is_left_out_only_while_timed_shows_under_the_probes(judge: Judge) -> None:
    """No check has a step past the context, so a candidate knows a timed chain by it; ordinary weights hide the attention of two blocks."""
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, judge.threads)
    honest = merge(TINY.graph, plan, pick(TINY.graph, load_implementations(), "cpu", oracle=True), flags=("-O1",))
    before, mark, after = honest.source.partition("static bool phase2_kda_heads")
    lazy = f"    if (run.position > {TINY.context}) return true;\n    {{  // beta"
    assert mark and "    {  // beta" in after
    cheat = honest.model_copy(update={"source": before + mark + after.replace("    {  // beta", lazy, 1)})
    limits = JudgeLimits(checks=CheckPlan(seeds=1, probe_seeds=1), effort=Effort(processes=9, pairs=1, read_pairs=2))
    evaluation = judge.evaluate(cheat, TINY, limits)
    assert evaluation.status is Status.CHEATING, evaluation.log
