"""Does memory pay? Cold campaigns fill memories; warm ones begin with them, on the same shape and on another, with half the evaluations.

    python experiments/memory_pays.py --seeds 5 --out experiments/results/cpu-memory-pays.json

Per seed: a cold campaign at --size (its memory is the one that is tested), a warm one there, a cold and a warm one at --other.
Warm campaigns may judge at most half of what the cold one of their size judged. Then the two results of a size are paired in one
evaluation, in fresh processes: the claim holds if the interval of (cold seconds / warm seconds) includes 0.98 or lies above it.
Curves are the best estimated speedup over the start after each evaluation, as the campaigns' own paired ratios give it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

from orchestrator.run_folder import read_events  # noqa: E402
from orchestrator.start import commit  # noqa: E402
from sandbox.candidate import Candidate  # noqa: E402
from sandbox.evaluation import Purpose  # noqa: E402
from sandbox.judge import Judge, JudgeLimits  # noqa: E402
from sandbox.plan import Plan  # noqa: E402
from sandbox.problem import Problem  # noqa: E402
from sandbox.timing import Effort  # noqa: E402

GOOD = 0.98


def campaign(root: Path, size: str, seed: int, minutes: float, cache: Path, memory: Path | None, most: int | None) -> dict[str, Any]:
    """Run one; `memory` is copied in before it. Returns its summary with its curve."""
    if memory is not None:
        shutil.copytree(memory, root / "memory")
    options = ["--size", size, "--seed", str(seed), "--minutes", str(minutes), "--engine", "local", "--rivals", "", "--opponents", ""]
    options += ["--new", "--plain", "--json", "--runs", str(root), "--cache", str(cache)]
    options += ["--candidates", str(most)] if most else []
    done = subprocess.run([sys.executable, str(HOME / "orchestrator" / "main.py"), *options], stdout=subprocess.PIPE, text=True, cwd="/")
    if done.returncode not in (0, 1):
        raise SystemExit(f"a campaign ended with {done.returncode}: {' '.join(options)}")
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary | {"curve": curve(Path(summary["run_folder"]))}


def curve(folder: Path) -> list[tuple[int, float]]:
    """(evaluations completed, estimated speedup over the start) at the start and at every change of the incumbent."""
    points, done = [(1, 1.0)], 0
    for event in read_events(folder):
        done += event["event"] == "evaluation.completed"
        if event["event"] == "incumbent.changed":
            points.append((done, round(float(event["speedup"]), 4)))
    return [*points, (done, points[-1][1])]


def result(folder: str) -> Candidate:
    """The megakernel that a campaign ended with."""
    kernels = Path(folder) / "kernels"
    plan = Plan.model_validate_json((kernels / "final.plan.json").read_text())
    return Candidate(
        role="solution", target="cpu", source=(kernels / "final.cpp").read_text(), threads=plan.blocks, plan=plan, name="final"
    )


def main() -> None:
    """Run everything, print a line per pair, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--size", default="small")
    parser.add_argument("--other", default="narrow")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    import platformdirs

    cache = (args.cache or platformdirs.user_cache_path("kernelbraid")).resolve()
    judge = Judge(cache)
    record: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"pairs": []}
    record |= {
        "what": "warm: memory from a cold campaign at the first size, at most half of the cold campaign's evaluations; ratio: cold / warm seconds",
        "machine": judge.environment.model_dump(mode="json", include={"cpu", "cores", "compiler"}), "commit": commit(),
        "command": " ".join(["python", "experiments/memory_pays.py", "--seeds", str(args.seeds), "--minutes", str(args.minutes)]),
    }  # fmt: skip
    for seed in range(args.first, args.first + args.seeds):
        with tempfile.TemporaryDirectory(prefix="kernelbraid-memory-") as scratch:
            memory: Path | None = None
            for size in (args.size, args.other):
                cold = campaign(Path(scratch) / f"cold-{size}", size, seed, args.minutes, cache, None, None)
                memory = memory or Path(scratch) / f"cold-{size}" / "memory"
                warm = campaign(Path(scratch) / f"warm-{size}", size, seed, args.minutes, cache, memory, max(4, cold["evaluations"] // 2))
                evaluation = judge.evaluate(
                    result(warm["run_folder"]), Problem.load("kimi_linear_decode", size), JudgeLimits(effort=Effort(processes=7, pairs=6)),
                    purpose=Purpose.REPLAY, incumbents={"cold": result(cold["run_folder"])},
                )  # fmt: skip
                r = evaluation.times.vs.get("cold") if evaluation.times else None
                pair = {
                    "seed": seed, "size": size, "memory_from": args.size, "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                    "load": os.getloadavg()[0], "status": evaluation.status, "standing": evaluation.standing,
                    "ratio": None if r is None else {"median": r.median, "low": r.low, "high": r.high, "n": r.pairs, "processes": r.processes},
                    "holds": bool(r and r.high >= GOOD and warm["evaluations"] <= cold["evaluations"] / 2 + 1),
                    "cold": {k: cold[k] for k in ("evaluations", "step_us", "curve", "seconds", "choices", "rewrites")},
                    "warm": {k: warm[k] for k in ("evaluations", "step_us", "curve", "seconds", "choices", "rewrites")}
                    | {"recalled": len(warm["tricks_recalled"])},
                }  # fmt: skip
                record["pairs"].append(pair)
                args.out.write_text(json.dumps(record, indent=1) + "\n")
                said = f"{r.median:.3f} ({r.low:.3f} to {r.high:.3f})" if r else evaluation.status
                print(f"seed {seed} {size}: cold {cold['evaluations']} evaluations {cold['curve'][-1][1]:.2f}x, warm {warm['evaluations']} "
                      f"{warm['curve'][-1][1]:.2f}x, cold / warm {said}, holds: {pair['holds']}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
