"""The legality checker: plan files, mutants that must be refused, variants that must stay, and each rule by itself."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
import yaml

from agents.planner import expand
from experiments.problems.kimi_linear_decode.graph import build_graph
from sandbox.errors import IllegalPlan
from sandbox.legality import check_plan, require_legal
from tests.sandbox.plan_facts import DIMS, FILES, PLANS, Case, base
from tests.sandbox.plan_mutants_memory import ALL_MUTATIONS
from tests.sandbox.plan_variants import VARIATIONS


@pytest.mark.parametrize("size", ["tiny", "small", "full", "kda_block"])
@pytest.mark.parametrize("file", FILES)
def test_plan_files_are_legal(size: str, file: str) -> None:
    for blocks in (1, 2, 3, 4, 8, 16):
        case = base(size, file, blocks)
        require_legal(case.plan, case.graph)
        require_legal(case.plan.model_copy(update={"target": "cuda"}), case.graph)


def test_a_whole_gpu_checks_fast() -> None:
    for file in FILES:
        case = base("full", file, 132)
        start = time.perf_counter()
        require_legal(case.plan, case.graph)
        seconds = time.perf_counter() - start
        print(f"full {file}, 132 blocks: {seconds * 1e3:.0f} ms")
        assert seconds < 20


def test_head_groups_do_not_fit_four_blocks() -> None:
    spec = yaml.safe_load((PLANS / "fused.yaml").read_text())
    for step in spec["phases"]["mla"][0]["steps"]:
        if step["stage"] == "attend":
            step["split"] = "head_groups"
    graph = build_graph(DIMS["tiny_mla"])
    assert check_plan(expand(spec, graph, 2, "cpu"), graph) == []
    with pytest.raises(IllegalPlan, match=r"L0\.attend.*reads L0\.q[ar].*nothing orders it after.*L0\.absorb"):
        require_legal(expand(spec, graph, 4, "cpu"), graph)


# -- mutants and variants ----------------------------------------------------------------------------------------

BASES = [(s, f, b) for s in ("kda_block", "tiny_mla", "tiny_kda") for f in FILES for b in (2, 3, 4, 8)]
BASES += [("tiny", f, b) for f in FILES for b in (2, 4)] + [(s, "fused_flag", 1) for s in ("kda_block", "tiny_mla")]
BASES += [("small", "fused", 4), ("full", "fused_flag", 8)]


def varied(case: Case, rng: random.Random, steps: int) -> tuple[Case, list[str]]:
    """A few meaning-preserving operators, one upon another."""
    used = []
    for variation in rng.choices(VARIATIONS, k=steps):
        after = variation(case, rng)
        if after is not None and after.plan.id != case.plan.id:
            case = after
            used.append(variation.__name__)
    return case, used


def table(title: str, counts: Counter[str]) -> None:
    """Counts per operator."""
    print(f"\n{title}: {counts.total()}")
    for name, n in sorted(counts.items()):
        print(f"  {name:26} {n:5}")


def test_variants_stay_legal() -> None:
    rng = random.Random(7)
    seen: set[str] = set()
    counts: Counter[str] = Counter()
    for size, file, blocks in BASES:
        start = base(size, file, blocks)
        for k in range(len(VARIATIONS) + 6 if len(start.graph.nodes) < 30 else 4):
            if k < len(VARIATIONS) and len(start.graph.nodes) < 30:
                after = VARIATIONS[k](start, rng)
                case, used = (after, [VARIATIONS[k].__name__]) if after else (start, [])
            else:
                case, used = varied(start, rng, 6)
            found = check_plan(case.plan, case.graph)
            assert not found, f"{size} {file} {blocks} after {used}: {found[0]}"
            if used and case.plan.id not in seen:
                seen.add(case.plan.id)
                counts.update(used)
    table(f"{len(seen)} legal variants, by operator", counts)
    assert len(seen) >= 200 and set(counts) == {v.__name__ for v in VARIATIONS}


def test_mutants_are_refused() -> None:
    rng = random.Random(11)
    seen: set[str] = set()
    counts: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    spent = 0.0
    for size, file, blocks in BASES:
        start = base(size, file, blocks)
        for round_ in range(3 if len(start.graph.nodes) < 30 else 1):
            case = start if round_ == 0 else varied(start, rng, 3)[0]
            for mutation in ALL_MUTATIONS:
                # What happens-before must find gets more tries than what counting items finds.
                for mutant in mutation.apply(case, rng, 1 if mutation.rules == "c" else 2):
                    if mutant.plan.id in seen or mutant.plan.id == case.plan.id:
                        continue
                    seen.add(mutant.plan.id)
                    clock = time.perf_counter()
                    found = check_plan(mutant.plan, mutant.graph)
                    spent += time.perf_counter() - clock
                    where = f"{mutation.name} of {size} {file} {blocks}"
                    assert found, f"accepted {where}: illegal because {mutation.reason}"
                    assert {v.rule for v in found} & set(mutation.rules), f"{where}: {[str(v) for v in found[:3]]}"
                    counts[mutation.name] += 1
                    broken.update({v.rule for v in found})
    table("refused mutants", counts)
    print(f"  rules broken: {dict(sorted(broken.items()))}; checking took {spent:.1f} s")
    assert len(seen) >= 5000 and set(counts) == {m.name for m in ALL_MUTATIONS}
