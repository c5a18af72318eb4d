"""kill -9 to the driver at random moments, then the same command again: nothing lost, nothing judged twice, nothing left running.

    python experiments/kill_campaign.py --kills 10

Uses the smoke campaign (tiny, a script), with Ray or without (--engine). Prints a line per kill and one JSON object at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

from memory.store import MemoryReader  # noqa: E402
from orchestrator.run_folder import read_events  # noqa: E402
from sandbox.evaluation import read_chain  # noqa: E402


def still_running(*, actors: bool = True) -> list[str]:
    """Command lines (their first 120 characters) of processes in a box of ours and, if asked, of Ray actors of ours."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if ("bwrap" in line and "kernelbraid" in line) or (actors and line.startswith("ray::Host")):
                found.append(line[:120])
    return found


def main() -> None:
    """Kill, go on, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--most", type=float, default=15.0, help="seconds until a kill, at most")
    args = parser.parse_args()
    moments, orphans = random.Random(), 0
    with tempfile.TemporaryDirectory(prefix="kernelbraid-kills-") as scratch:
        home = Path(scratch)
        command = [sys.executable, str(HOME / "orchestrator" / "main.py"), "--campaign", str(HOME / "experiments/campaigns/smoke.yaml"),
                   "--engine", args.engine, "--runs", str(home / "runs"), "--cache", str(home / "cache"), "--plain", "--json"]  # fmt: skip
        kills = 0
        while kills < args.kills:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait = moments.uniform(2.0, args.most)
            try:
                if process.wait(timeout=wait) not in (0, 1):
                    raise SystemExit(f"the campaign ended with {process.returncode} by itself: run {' '.join(command)}")
                print(f"the campaign ended before kill {kills + 1}; another one begins", flush=True)
                continue
            except subprocess.TimeoutExpired:
                os.kill(process.pid, 9)
                process.wait()
            kills += 1
            deadline = time.monotonic() + 15
            while still_running() and time.monotonic() < deadline:
                time.sleep(0.2)
            orphans += len(still_running())
            print(f"kill {kills} after {wait:.1f} s: {len(still_running())} processes left", flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        summaries = []
        for folder in sorted((home / "runs").glob("*-*-????")):
            records, told = read_chain(folder / "evaluations.jsonl"), read_events(folder)
            kinds = {k: sum(e["event"] == f"evaluation.{k}" for e in told) for k in ("started", "completed", "abandoned", "recovered")}
            keys = [r.key for r in records]
            summaries.append({
                "folder": folder.name, "finished": (folder / "summary.json").exists(), "records": len(keys), "distinct_keys": len(set(keys)),
                **kinds, "lives": 1 + sum(e["event"] == "campaign.resumed" for e in told),
                "reconciles": len(keys) == len(set(keys)) == kinds["completed"] and kinds["started"] == kinds["completed"] + kinds["abandoned"],
            })  # fmt: skip
        memory = MemoryReader(home / "runs" / "memory").stats()
        print(
            json.dumps({"exit": done.returncode, "kills": kills, "orphans": orphans, "campaigns": summaries, "memory": memory}, default=str)
        )


if __name__ == "__main__":
    main()
