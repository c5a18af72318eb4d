"""Three questions to the judge, answered by running it many times; each prints one JSON object.

    python experiments/judge_soak.py hostile --count 300     # hostile candidates in random order, an honest one between them
    python experiments/judge_soak.py rival --count 40        # a candidate as its own rival: how often is it called different?
    python experiments/judge_soak.py overhead --count 15     # wall seconds of an evaluation beyond compiling and running

hostile: no process and no file may be left, memory and disk stay flat, and the honest candidate keeps its median within the noise.
rival: the share of 99 % intervals of (itself / itself) that leave out 1. overhead: a whole evaluation, checked and not timed, of a kernel
that is compiled already and whose step takes a moment.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

from experiments.kill_campaign import still_running  # noqa: E402
from orchestrator.redteam import candidate_of, judged, limits_of, load_catalogue  # noqa: E402
from sandbox.checking import CheckPlan  # noqa: E402
from sandbox.judge import Judge, JudgeLimits  # noqa: E402
from sandbox.problem import Problem  # noqa: E402
from sandbox.timing import Effort  # noqa: E402

HONEST = "honest_kernel_cpp"


def resident_mb() -> float:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def boxes() -> int:
    """Folders of boxes that are left in the places where boxes are made."""
    return sum(len(list(root.glob("kernelbraid-boxes-*/*"))) for root in (Path(tempfile.gettempdir()), Path("/dev/shm")) if root.is_dir())


def hostile(count: int, cache: Path) -> dict[str, Any]:
    """Judge `count` hostile candidates, drawn at random, with the honest one after every tenth."""
    catalogue = [c for c in load_catalogue() if not c.gpu]
    honest = next(c for c in catalogue if c.name == HONEST)
    bad = [c for c in catalogue if not c.honest]
    judge, order = Judge(cache, threads=min(2, len(os.sched_getaffinity(0)))), random.Random()
    steps: list[float] = []
    missed: list[str] = []
    begun: tuple[float, int, int] | None = None
    for number in range(count):
        cheat = order.choice(bad)
        if not judged(cheat, judge).good:
            missed.append(cheat.name)
        if number % 10 == 0:
            found = judge.evaluate(candidate_of(honest), Problem.load(honest.problem, honest.size), limits_of(honest))
            if found.times is not None:
                steps.append(1e6 * found.times.step_seconds.median)
        if number == 20:  # caches are warm by now
            begun = resident_mb(), shutil.disk_usage(cache).free, boxes()
        print(f"{number + 1} of {count}: {cheat.name}, {len(missed)} missed so far", file=sys.stderr, flush=True)
    free = shutil.disk_usage(cache).free
    first, second = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    return {
        "hostile": count, "missed": missed, "orphans": still_running(actors=False), "boxes_left": boxes() - (begun[2] if begun else 0),
        "memory_mb": [round(begun[0], 1) if begun else None, round(resident_mb(), 1)],
        "disk_used_mb": round(((begun[1] if begun else free) - free) / 1e6, 1), "honest_us": [round(s, 1) for s in steps],
        "honest_medians": [round(statistics.median(part), 1) if part else None for part in (first, second)],
    }  # fmt: skip


def rival(count: int, cache: Path) -> dict[str, Any]:
    """Pair the honest kernel with itself, and count the 99 % intervals that leave out 1."""
    honest = next(c for c in load_catalogue() if c.name == HONEST)
    judge, candidate = Judge(cache), candidate_of(honest)
    other = candidate.model_copy(update={"name": "itself"})
    problem = Problem.load(honest.problem, honest.size)
    limits = JudgeLimits(checks=CheckPlan(seeds=1, probes=False, short_context=False), effort=Effort(processes=5, pairs=4, level=0.99))
    found = [judge.evaluate(candidate, problem, limits, incumbents={"itself": other}) for _ in range(count)]
    ratios = [e.times.vs["itself"] for e in found if e.times is not None]
    different = [[round(r.low, 3), round(r.high, 3)] for r in ratios if not r.low <= 1.0 <= r.high]
    return {"rivals": count, "measured": len(ratios), "called_different": len(different), "intervals": different,
            "medians": [round(r.median, 3) for r in ratios]}  # fmt: skip


def overhead(count: int, cache: Path) -> dict[str, Any]:
    """Seconds of a checked and untimed evaluation of a kernel that is compiled already and runs in a moment."""
    honest = next(c for c in load_catalogue() if c.name == HONEST)
    judge, candidate = Judge(cache), candidate_of(honest)
    problem = Problem.load(honest.problem, honest.size)
    limits = JudgeLimits(checks=CheckPlan(seeds=1, probes=False, short_context=False), timed=False)
    judge.evaluate(candidate, problem, limits)
    rest = []
    for _ in range(count):
        started = time.monotonic()
        judge.evaluate(candidate, problem, limits)  # compiled before
        rest.append(time.monotonic() - started)
    return {"evaluations": count, "seconds_beyond_compiling": {"median": round(statistics.median(rest), 3), "worst": round(max(rest), 3)}}


def main() -> None:
    """Ask one of the questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=("hostile", "rival", "overhead"))
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--cache", type=Path, required=True)
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    ask = {"hostile": hostile, "rival": rival, "overhead": overhead}[args.question]
    print(json.dumps(ask(args.count, args.cache.resolve())))


if __name__ == "__main__":
    main()
