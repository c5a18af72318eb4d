"""Admission: only a confirmed, timed pass whose interval clears the margin over enough process pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memory.trick import Trick, admit, load, refusal
from sandbox.evaluation import CaseResult, Environment, Evaluation, Interval, Purpose, Standing, Status, TensorError, Times


def evaluation(**changes: Any) -> Evaluation:
    ratio = Interval(**({"median": 1.1, "low": 1.05, "high": 1.2, "pairs": 30, "processes": 5} | changes.pop("ratio", {})))
    error = TensorError(rel_rms=0.1, allowed_rel_rms=0.2, max_element=0.1, allowed_max_element=0.2, ok=True)
    fields: dict[str, Any] = {
        "problem": "p", "size": "s", "candidate": "c", "role": "solution", "purpose": Purpose.ADMIT, "status": Status.PASSED,
        "environment": Environment(cpu="c", cores=2, arch="x", kernel="k", compiler="g"), "standing": Standing.CONFIRMED,
        "cases": (CaseResult(probe="o", seed=1, position=1, steps=1, tensors={"hidden": error}),),
        "times": Times(step_seconds=Interval(median=1, low=1, high=1, pairs=30, processes=5), vs={"unfused": ratio}),
    }  # fmt: skip
    return Evaluation.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"ratio": {"low": 1.02}}, "margin"),
        ({"ratio": {"processes": 4}}, "process pairs"),
        ({"standing": Standing.PROVISIONAL}, "provisional"),
        ({"standing": Standing.QUARANTINED}, "quarantined"),
        ({"status": Status.CRASH, "times": None, "cases": (), "standing": Standing.PROVISIONAL}, "crash"),
    ],
)
def test_what_proves_a_claim(changes: dict[str, Any], says: str) -> None:
    why = refusal(evaluation(**changes), "unfused")
    assert (why == "") if not says else (says in why)
    assert "not paired" in refusal(evaluation(), "somebody else")


def test_a_trick_is_kept_once(tmp_path: Path) -> None:
    e = evaluation()
    assert e.times is not None
    trick = Trick(
        claim="x", kind="plan", problem="p", size="s", target="cpu", environment=e.environment.id, candidate="c", parent="b",
        evaluations=("1",), ratio=e.times.vs["unfused"],
    )  # fmt: skip
    path = tmp_path / "memory" / "tricks.jsonl"
    assert admit(path, trick) and not admit(path, trick.model_copy(update={"at": "later"}))
    assert [t.id for t in load(path)] == [trick.id]
