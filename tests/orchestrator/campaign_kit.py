"""Running real campaigns at the smallest size, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent.parent
SMOKE = REPO / "experiments" / "campaigns" / "smoke.yaml"


def command(*arguments: str, home: Path) -> list[str]:
    """`python orchestrator/main.py`, with run folders, memory and cache under `home`."""
    folders = ["--runs", str(home / "runs"), "--cache", str(home / "cache")]
    return [sys.executable, str(REPO / "orchestrator" / "main.py"), *arguments, *folders]


def call(*arguments: str, home: Path, timeout: float = 500, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end, from a folder that is nobody's."""
    return subprocess.run(
        command(*arguments, home=home), capture_output=True, text=True, timeout=timeout, cwd="/", env=os.environ | environment
    )  # fmt: skip


def run_folder(home: Path) -> Path:
    """The newest."""
    return sorted((home / "runs").glob("*-*-????"))[-1]


def events(folder: Path) -> list[dict[str, Any]]:
    """All events."""
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().split("\n")[:-1]]


def reconcile(folder: Path) -> None:
    """Counts of the log and of the chain agree, and nothing was judged twice."""
    from sandbox.evaluation import read_chain

    records = read_chain(folder / "evaluations.jsonl")
    keys = [r.key for r in records]
    assert len(keys) == len(set(keys)), "a key has two completed evaluations"
    told = events(folder)
    completed = [e["key"] for e in told if e["event"] == "evaluation.completed"]
    assert len(completed) == len(set(completed)), "a completion was written twice"
    bisected = {r.key for r in records if r.purpose == "bisect"}
    assert set(completed) == set(keys) - bisected, "log and chain name different evaluations"
    begun = [e["key"] for e in told if e["event"] == "evaluation.started"]
    abandoned = [e["key"] for e in told if e["event"] == "evaluation.abandoned"]
    assert len(begun) == len(completed) + len(abandoned), "every evaluation that began was completed or abandoned"
