"""Public kernels of kimi_linear_decode beside their own event loops: what `kernelbraid evaluate` says, and what they say themselves.

    python experiments/public_solutions.py --problem-folder CHECKOUT/benchmarks/mega/problems/02_kimi_linear_decode \\
        --size full --out results.json SOLUTION.py [SOLUTION.py ...]

The problem folder and the solutions come from a checkout of the public benchmark; nothing of it is in this repository. Per solution
two things run one after the other on one GPU: 50 chained steps between CUDA events in a plain process (median of 5 chains, weights
of this project's judge, the public `Model`, `init_state` and `init_token`), and the judge with an observation. Their device times
must agree within 5 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

OWN_LOOP = """
import importlib.util, json, statistics, sys, torch
from safetensors.torch import load_file
folder, path, weights, context = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
sys.path.insert(0, folder)
import reference
spec = importlib.util.spec_from_file_location("solution", path)
solution = importlib.util.module_from_spec(spec)
sys.modules["solution"] = solution
spec.loader.exec_module(solution)
cfg = reference.build_config({"n_experts": 64})
with torch.no_grad():
    model = solution.Model(cfg).to("cuda:0").eval()
    public = {name: t[None] if ".moe.s_" in name else t for name, t in load_file(weights).items()}
    model.load_state_dict(public, strict=True)
    took = []
    for turn in range(6):
        hidden, state = reference.init_token(cfg, turn), reference.init_state(cfg, context, turn)
        for _ in range(3):
            hidden, state = model.step(hidden, state)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(50):
            hidden, state = model.step(hidden, state)
        end.record()
        torch.cuda.synchronize()
        took.append(1e3 * begin.elapsed_time(end) / 50)
print(json.dumps({"own_loop_us": statistics.median(took[1:])}))
"""


def own_loop(folder: Path, solution: Path, weights: Path, context: int) -> float | None:
    """us per step by the solution's own events; None if it does not run."""
    done = subprocess.run([sys.executable, "-c", OWN_LOOP, str(folder), str(solution), str(weights), str(context)], capture_output=True,
                          text=True, timeout=400, check=False)  # fmt: skip
    if done.returncode:
        sys.stderr.write(f"{solution.name} by itself: {done.stderr[-600:]}\n")
        return None
    return float(json.loads(done.stdout.splitlines()[-1])["own_loop_us"])


def main() -> None:
    """Run all, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solutions", type=Path, nargs="+")
    parser.add_argument("--problem-folder", type=Path, required=True)
    parser.add_argument("--size", default="full")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    from sandbox.problem import Problem

    problem = Problem.load("kimi_linear_decode", args.size)
    weights = problem.weights_file(args.cache.resolve())
    own = {path.stem: own_loop(args.problem_folder.resolve(), path.resolve(), weights, problem.context) for path in args.solutions}
    command = [sys.executable, "-c", "from orchestrator.cli import app; app()", "evaluate", *map(str, args.solutions), "--size", args.size,
               "--target", "cuda", "--look", "--json", "--cache", str(args.cache), "--seeds", str(args.seeds),
               "--processes", str(args.processes), "--pairs", str(args.pairs)]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=HOME, check=False)
    rows: list[dict[str, Any]] = []
    for row in json.loads(done.stdout.splitlines()[-1]):
        e, o = row["evaluation"], row["observation"]
        name = Path(e["candidate_name"]).stem
        times = e["times"] or {}
        device = 1e6 * times["device_seconds"]["median"] if times else 1e6 * o["device_seconds"] if o and o["device_seconds"] else None
        launches = e["launches"] or (o["launches"] if o else {})
        wrong = sorted({f"{c['probe']}: {t}" for c in e["cases"] for t, x in c["tensors"].items() if not x["ok"]})
        rows.append({"solution": name, "status": e["status"], "standing": e["standing"], "launches": launches, "device_us": device,
                     "own_loop_us": own.get(name), "gap": device / own[name] - 1 if device and own.get(name) else None, "wrong": wrong,
                     "facts": e["device_facts"], "log": e["log"][:300]})  # fmt: skip
    args.out.write_text(json.dumps({"size": args.size, "command": " ".join(sys.argv[1:]), "rows": rows}, indent=1) + "\n")
    for r in rows:
        count = sum(n for kind, n in r["launches"].items() if kind not in ("graph", "once per chain"))
        print(f"{r['solution']:14} {r['status']:12} launches {count:6.2f}  device {r['device_us'] or 0:7.1f} us  own loop {r['own_loop_us'] or 0:7.1f} us"
              f"  gap {100 * (r['gap'] or 0):+5.1f} %  {r['log'].splitlines()[0][:90] if r['log'] else ''}")  # fmt: skip
        print(f"   wrong: {', '.join(r['wrong'])[:400] or 'nothing'}")


if __name__ == "__main__":
    main()
