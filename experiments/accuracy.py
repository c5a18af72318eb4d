"""Accuracy of the fused CPU megakernel beside the honest bf16 baseline: single steps and long chains.

    python experiments/accuracy.py --size small --seeds 20 --chain 64

Prints, per output and state tensor, relative RMS errors against the truth over the seeds: median and worst of one step
(rule: at most twice the baseline's) and the median after a chain (rule: at most 1.2 times). A chain feeds each output back
as the next token; candidate, baseline and truth walk each along their own outputs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import platformdirs
import torch

from agents.merger import merge, pick
from agents.planner import load_plan
from agents.skills import load_implementations
from sandbox.checking import cache_pads, case_file, outcome_of
from sandbox.judge import Judge, JudgeLimits
from sandbox.problem import Problem


def main() -> int:
    """Run and print; 0 if both rules hold for every tensor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--chain", type=int, default=64)
    parser.add_argument("--plan", default="fused")
    parser.add_argument("--cache", type=Path, default=platformdirs.user_cache_path("kernelbraid"))
    options = parser.parse_args()
    judge = Judge(options.cache)
    problem = Problem.load("kimi_linear_decode", options.size)
    plan = load_plan(problem.plan_file(options.plan), problem.graph, judge.threads)
    candidate = merge(problem.graph, plan, pick(problem.graph, load_implementations(), "cpu"))
    library = judge.compile(candidate).path
    weights = judge.weights(problem)
    ok = True
    with contextlib.closing(judge.open_candidate(candidate, library, problem, JudgeLimits(wall_s=3600))) as child:
        for steps in (1, options.chain):
            own, honest = measure(problem, weights, child, options.seeds, steps)
            ok &= report(own, honest, steps)
    print(json.dumps({"ok": ok, "size": options.size, "seeds": options.seeds, "chain": options.chain, "candidate": candidate.id}))
    return 0 if ok else 1


def measure(problem: Problem, weights: Any, child: Any, seeds: int, steps: int) -> tuple[list[Any], list[Any]]:
    """Per seed the errors of the candidate and of the baseline, by tensor."""
    tolerance, reference = problem.module("tolerance"), problem.module("reference")
    truth = reference.Truth(problem.dims, weights, torch.float64 if steps == 1 else torch.float32)
    baseline = problem.module("baseline").MaterialisingBaseline(problem.dims, weights)
    rows = problem.context + 64
    own, honest = [], []
    for seed in range(seeds):
        case = tolerance.draw_case(truth, problem.context, 1000 + seed, steps, tolerance.ROUTING_MARGIN if steps == 1 else 0.0)
        child.prepare("a", case_file(case.inputs, case.state), problem.output_bytes, capacity_pad=cache_pads(problem, case.state, rows))
        child.run_chain("a", steps=steps, position=case.position, feed={"hidden": "token"})
        own.append(tolerance.case_errors(case, outcome_of(problem, case, child.collect("a"))))
        rough = tolerance.chain(baseline.step, case.token, case.state, case.position, steps)
        honest.append(tolerance.case_errors(case, rough))
    return own, honest


def report(own: list[Any], honest: list[Any], steps: int) -> bool:
    """Print one table; whether its rule holds for every tensor."""
    ok = True
    print(f"\n{steps} step(s), {len(own)} seeds: relative RMS error, ours / bf16 baseline")
    print(f"{'tensor':<16}{'median':>22}{'ratio':>8}{'worst':>24}{'ratio':>8}")
    for name in own[0]:
        mine, theirs = ([e[name].relative for e in errors] for errors in (own, honest))
        pairs = [(statistics.median(mine), statistics.median(theirs)), (max(mine), max(theirs))]
        ratios = [a / max(b, 1e-30) for a, b in pairs]
        holds = ratios[0] <= 2 and ratios[1] <= 2 if steps == 1 else ratios[0] <= 1.2
        ok &= holds
        cells = [f"{a:.3g} / {b:.3g}" for a, b in pairs]
        print(f"{name:<16}{cells[0]:>22}{ratios[0]:>8.2f}{cells[1]:>24}{ratios[1]:>8.2f}{'' if holds else '  BROKEN'}")
    return ok


if __name__ == "__main__":
    sys.exit(main())
