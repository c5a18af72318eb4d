"""Admission: only a confirmed, timed pass whose interval clears the margin over enough process pairs."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from memory.trick import Failure, contradiction, refusal
from sandbox.evaluation import Standing, Status
from tests.memory.kit import HERE, SHAPE, evaluation, failure, recorded, trick


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


def test_the_id_is_what_was_changed_and_where_it_was_proven() -> None:
    one = trick(recorded())
    same = {"claim": "in other words", "at": "later", "specialist": "somebody", "evaluations": ("another",)}
    assert one.model_copy(update=same).id == one.id
    for field in ("kind", "problem", "size", "target", "environment", "candidate", "parent"):
        assert one.model_copy(update={field: "another"}).id != one.id
    assert one.model_copy(update={"change": None}).id != one.id


@pytest.mark.parametrize(
    ("standing", "changes", "says"),
    [
        ("verified", {}, ""),
        ("verified", {"standing": Standing.PROVISIONAL}, "provisional"),
        ("stale", {}, "proves the claim again"),
        ("stale", {"ratio": {"low": 0.98, "median": 1.0, "high": 1.3}}, ""),
        ("refuted", {"ratio": {"low": 0.98, "median": 1.0, "high": 1.3}}, "ends at 1.300"),
        ("refuted", {"ratio": {"low": 0.9, "median": 0.95, "high": 1.01}}, ""),
        ("refuted", {"ratio": {"low": 0.9, "median": 0.95, "high": 1.01, "processes": 2}}, "stale at most"),
        ("refuted", {"status": Status.CRASH, "times": None, "cases": (), "standing": Standing.PROVISIONAL}, ""),
        ("stale", {"status": Status.INFRASTRUCTURE, "times": None, "cases": (), "standing": Standing.PROVISIONAL}, "says nothing"),
    ],
)
def test_what_changes_a_standing(standing: Any, changes: dict[str, Any], says: str) -> None:
    why = contradiction(standing, evaluation(**changes), "unfused", 1.02)
    assert (why == "") if not says else (says in why)


def test_a_failure_binds_where_it_happened_until_it_expires() -> None:
    wrong, slow = failure(at="2026-01-01T00:00:00+00:00"), failure(at="2026-01-01T00:00:00+00:00", status="slower")
    assert (wrong.expires, slow.expires) == ("2026-06-30", "2026-01-31")
    assert wrong.reason == "tensor hidden: 3 times the allowed error"
    here = (wrong.hardware, SHAPE, "g++ 13")
    day = datetime.date.fromisoformat
    assert slow.binds(*here, day("2026-01-30")) and not slow.binds(*here, day("2026-01-31"))
    today = day("2026-01-02")
    assert not wrong.binds(wrong.hardware.model_copy(update={"cores": 4}), SHAPE, "g++ 13", today)
    assert not wrong.binds(wrong.hardware, SHAPE | {"hidden": 512}, "g++ 13", today)
    assert not wrong.binds(wrong.hardware, SHAPE, "g++ 14", today)
    assert wrong.id == slow.id != failure(1).id
    assert Failure.model_validate_json(wrong.model_dump_json()) == wrong
    assert HERE.compiler == wrong.toolchain
