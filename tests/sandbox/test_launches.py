"""Launches from two profiled chains, and the gate on them; the counts are given, so no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.candidate import Candidate
from sandbox.device import Device
from sandbox.evaluation import Standing, Status
from sandbox.judge import Judge, JudgeLimits
from sandbox.judgement import Judgement, launches_of
from sandbox.problem import Problem
from sandbox.timing import ONCE, Measured, launches_per_step

GPU = Device(index=0, uuid="GPU-none", name="none", driver="0", memory_bytes=0)


def judgement(tmp_path: Path, **limits: int | bool) -> Judgement:
    judge = Judge(tmp_path, unsafe=True)
    judge.device = GPU
    one = Candidate(role="solution", target="cuda", language="python", source="pass")
    return Judgement(judge, one, Problem.load("kimi_linear_decode", "tiny"), JudgeLimits(**limits), {}, None, {})  # type: ignore[arg-type]


def test_what_grows_with_the_steps_is_a_launch_and_the_rest_is_once() -> None:
    found = launches_per_step((10, {"kernel a": 10, "copy": 23, "graph": 10}), (40, {"kernel a": 40, "copy": 83, "graph": 40}))
    assert found == {"kernel a": 1.0, "copy": 2.0, "graph": 1.0, ONCE: 3.0}
    assert launches_of(found) == 3.0


@pytest.mark.parametrize(
    ("launches", "limits", "status"),
    [
        ([{"kernel a": 1.0, ONCE: 5.0}], {}, None),
        ([{"kernel a": 1.0}, {"kernel a": 1.0, "copy": 0.5}], {}, Status.RULE_BROKEN),
        ([{"kernel a": 1.0, "graph": 1.0}], {}, Status.RULE_BROKEN),
        ([{"kernel a": 1.0, "graph": 1.0}], {"graphs": True}, None),
        ([{"kernel a": 2.0}], {"max_launches": 2}, None),
        ([{"kernel a": 1.0}, {}], {}, Status.UNAVAILABLE),
        ([], {}, Status.UNAVAILABLE),
    ],
)
def test_the_largest_count_stands_and_no_count_passes_nothing(
    tmp_path: Path, launches: list[dict[str, float]], limits: dict[str, int | bool], status: Status | None
) -> None:
    run = judgement(tmp_path, **limits)
    before = run.status
    assert run.count_launches(Measured(launches=launches)) is (status is None)
    assert run.status is (status or before)


@pytest.mark.parametrize(
    ("limits", "standing"),
    [({}, Standing.CONFIRMED), ({"max_launches": 9}, Standing.PROVISIONAL), ({"graphs": True}, Standing.PROVISIONAL)],
)
def test_another_policy_than_the_problems_confirms_nothing(tmp_path: Path, limits: dict[str, int | bool], standing: Standing) -> None:
    same = [[1e-3] * 3] * 5
    measured = Measured(own=same, device=same, short=[(10, 0.010)], long=[(40, 0.040)])
    assert judgement(tmp_path, **limits).settle(measured, None, unclear=False) is standing


def test_a_device_time_below_the_parents_slope_is_quarantined(tmp_path: Path) -> None:
    measured = Measured(own=[[1e-3] * 3] * 5, device=[[0.9e-3] * 3] * 5, short=[(10, 0.010)], long=[(40, 0.040)])
    assert judgement(tmp_path).settle(measured, None, unclear=False) is Standing.QUARANTINED
