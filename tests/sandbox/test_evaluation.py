"""Records that must not be buildable, and a chain that shows edits."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from sandbox.candidate import Candidate, Implementation
from sandbox.checking import CheckPlan
from sandbox.errors import RecordError
from sandbox.evaluation import (
    CaseResult,
    Environment,
    Evaluation,
    Interval,
    Purpose,
    Standing,
    Status,
    TensorError,
    Times,
    append,
    read_chain,
)
from sandbox.intervals import interval
from sandbox.judge import Judge, JudgeLimits
from sandbox.problem import Problem

ENVIRONMENT = Environment(cpu="c", cores=2, arch="x86_64", kernel="k", compiler="g++")
TIMES = Times(step_seconds=Interval(median=1.0, low=0.9, high=1.1, pairs=10, processes=5))


def case(ok: bool) -> CaseResult:
    error = TensorError(rel_rms=0.1, allowed_rel_rms=0.2, max_element=0.1, allowed_max_element=0.2, ok=ok)
    return CaseResult(probe="ordinary", seed=1, position=4, steps=1, tensors={"hidden": error})


def evaluation(**changes: object) -> Evaluation:
    fields: dict[str, object] = {
        "problem": "p", "size": "s", "candidate": "c", "role": "solution", "environment": ENVIRONMENT,
        "purpose": Purpose.SEARCH, "status": Status.PASSED, "cases": (case(True),),
    }  # fmt: skip
    return Evaluation.model_validate(fields | changes)


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.PASSED])
def test_nothing_but_a_pass_carries_a_time(status: Status) -> None:
    with pytest.raises((RecordError, ValidationError), match="cannot carry a time"):
        evaluation(status=status, cases=(), times=TIMES)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cases": ()}, "at least one checked case"),
        ({"cases": (case(True), case(False))}, "contradicts a case"),
        ({"status": Status.WRONG, "cases": (case(True),)}, "needs a case that is out of bounds"),
        ({"standing": Standing.CONFIRMED}, "only a timed pass can be confirmed"),
        ({"role": "stage"}, "names its node"),
        ({"dispatches_per_step": 1.0}, "needs its evidence"),
        ({"speed": 3}, "extra"),
    ],
)
def test_contradictions_cannot_be_built(changes: dict[str, object], says: str) -> None:
    with pytest.raises((RecordError, ValidationError), match=says):
        evaluation(**changes)


def test_records_are_frozen() -> None:
    with pytest.raises(ValidationError):
        evaluation().status = Status.CRASH  # type: ignore[misc]


def test_the_chain_shows_an_edit_a_removal_and_a_swap(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    for attempt in (1, 2, 3):
        append(path, evaluation(attempt=attempt, times=TIMES))
    lines = path.read_text().splitlines()
    assert [e.attempt for e in read_chain(path)] == [1, 2, 3]
    for broken in (
        [lines[0], lines[1].replace('"median":1.0', '"median":0.9'), lines[2]],
        [lines[0], lines[2]],
        [lines[1], lines[0], lines[2]],
    ):
        path.write_text("\n".join(broken) + "\n")
        with pytest.raises(RecordError, match="edited or records are missing"):
            read_chain(path)


def test_the_id_of_a_candidate_is_what_changes_behaviour() -> None:
    base = Candidate(role="solution", target="cpu", source="int x;", name="a", author="b")
    assert base.id == base.model_copy(update={"name": "z", "author": "y"}).id
    changed = [{"source": "int y;"}, {"flags": ("-O1",)}, {"threads": 3}, {"target": "cuda"}]
    assert len({base.id, *(base.model_copy(update=c).id for c in changed)}) == 1 + len(changed)


def test_the_id_of_an_implementation_covers_its_knobs() -> None:
    one = Implementation(name="n", kind="k", target="cpu", source="s", knobs={"LEVELS": 2})
    assert one.id != one.with_knobs(LEVELS=1).id
    assert one.id == one.model_copy(update={"name": "other", "author": "x"}).id
    with pytest.raises(RecordError, match="no knob"):
        one.with_knobs(DEPTH=1)


def test_intervals_rest_on_processes_not_on_calls() -> None:
    """Five processes that disagree give a wide interval however many calls each made."""
    spread = interval([[1.0] * 200, [1.1] * 200, [1.2] * 200, [1.3] * 200, [1.4] * 200], "x")
    assert spread.median == pytest.approx(1.2)
    assert spread.low <= 1.1 and spread.high >= 1.3
    assert spread.processes == 5 and spread.pairs == 1000
    same = interval([[1.0, 1.01, 0.99]] * 5, "x")
    assert 0.99 <= same.low <= same.median <= same.high <= 1.01


def test_whatever_a_candidate_prints_the_chain_stays_readable(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    source = 'extern "C" const char* kb_abi() { static const char said[] = "a\\u2028b\\u2029c\\v\\f\\n"; write(2, said, sizeof said - 1); _exit(1); }'
    problem = Problem.load("kimi_linear_decode", "tiny")
    limits = JudgeLimits(timed=False, wall_s=30, checks=CheckPlan(seeds=1, probes=False, short_context=False))
    evaluation = judge.evaluate(Candidate(role="solution", target="cpu", source="#include <unistd.h>\n" + source), problem, limits)
    assert "\u2028" in evaluation.log
    append(path, evaluation)
    append(path, evaluation)
    assert len(read_chain(path)) == 2


def test_a_torn_record_is_said_to_be_torn(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    path.write_text('{"id": "x", "prob')
    with pytest.raises(RecordError, match="torn"):
        read_chain(path)
