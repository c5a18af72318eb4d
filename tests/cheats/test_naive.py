"""The cheats are real ones: a harness as one writes it on the first day is taken in by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.redteam import load_catalogue
from sandbox.box_python import python_command
from sandbox.isolation import Limits, open_box
from sandbox.walls import probe_walls

HERE = Path(__file__).resolve().parent
CHEATS = [c for c in load_catalogue() if c.language == "python" and c.problem == "gated_mlp" and not c.gpu]
HOSTILE = {c.name for c in CHEATS if not c.honest}
FOOLS = {c.name for c in CHEATS if c.fools_naive}
TWINS = {c.name for c in CHEATS if c.honest}
GAIN = 3.0  # times as fast as the reference: nobody computes this function in a third of the time of its three products


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, object]]:
    """What the naive harness says of each cheat that is meant to fool it, and of the twins. It runs in a box all the same."""
    walls = probe_walls()
    python, binds = python_command(walls, packages=True)
    limits = Limits(wall_s=240, cpu_s=240, memory_bytes=4 << 30, processes=128, output_bytes=8 << 20)
    with open_box(limits, walls, readonly=[*binds, (HERE, "/cheats")]) as box:
        done = box.run([python, "-I", "/cheats/naive.py", "/cheats", *sorted(FOOLS | TWINS)])
    lines = [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith('{"name"')]
    return {answer["name"]: answer for answer in lines}


def accepted(answer: dict[str, object]) -> bool:
    """Whether either order of checking and timing lets it pass."""
    return bool(answer.get("first") or answer.get("last"))


def test_the_naive_harness_accepts_the_honest(answers: dict[str, dict[str, object]]) -> None:
    assert [answers[name] for name in TWINS if not (answers[name]["first"] and answers[name]["last"])] == []


def test_at_least_half_of_the_cheats_fool_it(answers: dict[str, dict[str, object]]) -> None:
    assert [answers[name] for name in FOOLS if not accepted(answers[name])] == []
    assert 2 * len(FOOLS) >= len(HOSTILE), f"{len(FOOLS)} of {len(HOSTILE)}"


def test_it_believes_speeds_that_cannot_be(answers: dict[str, dict[str, object]]) -> None:
    fast = {name for name in FOOLS if accepted(answers[name]) and float(str(answers[name]["speedup"])) > GAIN}
    assert fast >= {"identity_memo", "value_memo", "id_reuse", "nan", "patch_torch", "mutate_input", "launch_failure"}
