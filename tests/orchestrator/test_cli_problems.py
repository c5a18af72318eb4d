"""`kernelbraid problems`: what it lists, and what its check says of a good problem and of one that a constant could solve."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from sandbox.problem import PROBLEMS

DEMANDS = ("zeros fail", "a constant fails", "the identity fails", "plausible junk fails", "x matters", "norm.weight matters")


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["problems", *words])


def test_without_a_command_it_lists_every_problem_with_its_sizes() -> None:
    listed = call()
    assert listed.exit_code == 0
    for path in PROBLEMS.glob("*/problem.yaml"):
        assert f"\n{path.parent.name}: " in f"\n{listed.stdout}"
    assert listed.stdout.count("  tiny ") == 2
    assert "plans      unfused, fused, fused_flag\n" in listed.stdout
    assert call("list").stdout == listed.stdout


def test_a_good_problem_is_admitted() -> None:
    checked = call("check", "gated_mlp", "--size", "tiny", "--json")
    assert checked.exit_code == 0
    assert all(f"{demand} " in checked.output for demand in DEMANDS)
    summary = json.loads(checked.stdout.splitlines()[-1])
    assert summary["missing"] == [] and summary["held"] == summary["demands"] > len(DEMANDS)


def test_a_problem_in_which_the_weights_do_not_matter_is_not(tmp_path: Path) -> None:
    """A copy of gated_mlp whose block adds nothing: whoever returns x solves it."""
    folder = tmp_path / "idle_mlp"
    shutil.copytree(PROBLEMS / "gated_mlp", folder, ignore=shutil.ignore_patterns("__pycache__"))
    definition = folder / "definition.py"
    text = definition.read_text()
    assert "DOWN_SHARE = 0.5" in text
    definition.write_text(text.replace("DOWN_SHARE = 0.5", "DOWN_SHARE = 0.0"))
    checked = call("check", str(folder), "--size", "tiny", "--json")
    assert checked.exit_code == 1
    missing = set(json.loads(checked.stdout.splitlines()[-1])["missing"])
    assert {"the identity fails", "gate.weight matters", "up.weight matters"} <= missing
    assert "zeros fail" not in missing


@pytest.mark.parametrize("words", [("check", "no_such_problem"), ("check", "gated_mlp", "--size", "huge")])
def test_what_is_not_there_is_said_in_one_sentence(words: tuple[str, ...]) -> None:
    asked = call(*words)
    assert asked.exit_code == 2 and "Traceback" not in asked.output
    assert "no_such_problem" in asked.output or "tiny" in asked.output
