"""The command line as a user meets it: the whole main job at the tiny size, and mistakes that get one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.evaluation import read_chain


def call(repo: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repo / "orchestrator" / "main.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, cwd="/", env=os.environ | environment)


def test_the_main_job_from_anywhere(repo: Path, tmp_path: Path) -> None:
    options = ["--size", "tiny", "--processes", "1", "--pairs", "2", "--seeds", "2", "--rivals", "baseline"]
    done = call(repo, *options, "--runs", str(tmp_path / "runs"), "--cache", str(tmp_path / "cache"), "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, "stdout is data"
    summary = json.loads(done.stdout)
    assert summary["status"] == "passed"
    assert summary["dispatches_per_step"] == 1
    assert summary["all_to_alls"] < summary["unfused_all_to_alls"]
    assert summary["memory_admitted"] == 0, "one process pair proves nothing"
    assert set(summary["speedup_vs_baseline"]) == {"median", "low", "high", "pairs"}
    folder = Path(summary["run_folder"])
    assert folder.is_absolute()
    records = read_chain(folder / "evaluations.jsonl")
    assert len(records) == summary["evaluations"]
    assert {"kernels", "summary.json", "settings.json", "environment.json", "events.jsonl"} <= {p.name for p in folder.iterdir()}
    assert "fused" in done.stderr and "stamped us" in done.stderr
    built = subprocess.run(
        [
            "g++",
            "-std=c++20",
            "-O1",
            "-march=native",
            "-Wno-psabi",
            "-fPIC",
            "-shared",
            "-pthread",
            summary["kernel"],
            "-o",
            str(tmp_path / "k.so"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert built.returncode == 0, built.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--size", "huge"], "has no size 'huge'; it has"),
        (["--problem", "nothing"], "no problem 'nothing'"),
        (["--size", "tiny", "--rivals", "pytorch"], "no baseline 'pytorch'; it has"),
    ],
)
def test_a_mistake_gets_one_sentence(repo: Path, tmp_path: Path, options: list[str], says: str) -> None:
    done = call(repo, *options, "--runs", str(tmp_path / "runs"), "--cache", str(tmp_path / "cache"))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_importing_the_command_line_is_light(repo: Path) -> None:
    """No work and no heavy library on import."""
    code = "import sys; import orchestrator.cli; print(sorted(m for m in ('torch', 'numpy') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=repo, timeout=60)
    assert done.stdout.strip() == "[]"
