"""The run folder: one owner, torn lines, abandoned work, and a replay that repeats nothing."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from orchestrator.run_folder import RunFolder, RunFolderError, read_events
from sandbox.evaluation import Environment, Evaluation, Purpose, Status, evaluation_key, read_chain

HERE = Environment(cpu="c", cores=2, arch="x86_64", kernel="k", compiler="g++")


def record(candidate: str, attempt: int = 1) -> Evaluation:
    return Evaluation(problem="p", size="s", candidate=candidate, role="solution", environment=HERE, purpose=Purpose.SEARCH, attempt=attempt,
                      status=Status.CRASH)  # fmt: skip


def key(candidate: str, attempt: int = 1) -> str:
    return evaluation_key(candidate, "p", "s", HERE.id, Purpose.SEARCH, attempt)


def test_the_key_is_known_before_the_work() -> None:
    assert record("a").key == key("a") != key("a", 2)


def _try(path: str, queue: multiprocessing.Queue[str]) -> None:
    try:
        RunFolder(Path(path))
        queue.put("opened")
    except RunFolderError as error:
        queue.put(str(error))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder.new(tmp_path, "p-s")
    queue: multiprocessing.Queue[str] = multiprocessing.get_context("spawn").Queue()
    for expected in ("another process", "opened"):
        process = multiprocessing.get_context("spawn").Process(target=_try, args=(str(folder.path), queue))
        process.start()
        assert expected in queue.get(timeout=60)
        process.join()
        folder.close()


def test_a_second_life_repeats_nothing_and_names_what_was_abandoned(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run")
    first.event("campaign.started", size="s")
    first.event("evaluation.started", key=key("a"))
    kept = first.record(record("a"))
    first.event("evaluation.completed", key=key("a"), evaluation=kept.id)
    first.event("evaluation.started", key=key("b"))
    first.close()

    second = RunFolder(tmp_path / "run")
    second.note("campaign.resumed")
    assert second.event("campaign.started", size="s") is None, "an earlier life said so"
    assert second.replaying
    assert second.recorded(key("a")) == kept
    assert not second.replaying
    assert second.recorded(key("b")) is None
    assert second.event("evaluation.started", key=key("b")) is not None, "it begins again, and says so"
    again = second.record(record("b"))
    second.event("evaluation.completed", key=key("b"), evaluation=again.id)
    with pytest.raises(RunFolderError, match="judged before"):
        second.record(record("b"))
    second.close()

    events = [e["event"] for e in read_events(tmp_path / "run")]
    assert events.count("campaign.started") == 1
    assert events.count("evaluation.abandoned") == 1
    assert [r.candidate for r in read_chain(second.evaluations)] == ["a", "b"]

    third = RunFolder(tmp_path / "run")
    assert [e["event"] for e in read_events(third.path)].count("evaluation.abandoned") == 1, "b was completed in the end"


def test_what_was_abandoned_twice_begins_three_times(tmp_path: Path) -> None:
    for _ in range(2):
        life = RunFolder(tmp_path / "run")
        assert life.event("evaluation.started", key=key("a")) is not None
        life.close()
    last = RunFolder(tmp_path / "run")
    assert last.event("evaluation.started", key=key("a")) is not None
    last.record(record("a"))
    told = [e["event"] for e in read_events(last.path)]
    assert (told.count("evaluation.started"), told.count("evaluation.abandoned")) == (3, 2)


def test_a_second_life_on_another_way_completes_nothing_twice(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run")
    for candidate in ("a", "b"):
        first.event("evaluation.started", key=key(candidate))
        kept = first.record(record(candidate))
        first.event("evaluation.completed", key=key(candidate), evaluation=kept.id, proposal=1)
    first.event("trick.refused", why="noise")
    first.close()
    second = RunFolder(tmp_path / "run")
    second.event("evaluation.started", key=key("c"))
    second.record(record("c"))  # before a and b are asked for
    assert not second.replaying, "the clock does not stand still for what nobody asks for"
    assert second.recorded(key("a")) is not None
    assert second.event("evaluation.started", key=key("a")) is None
    assert second.event("evaluation.completed", key=key("a"), proposal=7) is None, "its one completion stands"
    assert second.event("trick.refused", why="noise") is not None, "another story"


def test_a_record_whose_completion_was_not_written_counts(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run")
    first.event("evaluation.started", key=key("a"))
    kept = first.record(record("a"))
    first.close()
    second = RunFolder(tmp_path / "run")
    assert second.recorded(key("a")) == kept
    assert [e["event"] for e in read_events(second.path)][-1] == "evaluation.recovered"
    second.close()
    assert [e["event"] for e in read_events(RunFolder(tmp_path / "run").path)].count("evaluation.recovered") == 1


@pytest.mark.parametrize("name", ["events.jsonl", "evaluations.jsonl"])
def test_a_torn_line_is_kept_aside(tmp_path: Path, name: str) -> None:
    first = RunFolder(tmp_path / "run")
    first.event("campaign.started")
    first.record(record("a"))
    first.close()
    with (tmp_path / "run" / name).open("a") as f:
        f.write('{"event": "half')
    second = RunFolder(tmp_path / "run")
    assert second.count == 1
    second.record(record("b"))
    assert len(read_chain(second.evaluations)) == 2
    aside = list((tmp_path / "run").glob("*.torn-*"))
    assert len(aside) == 1 and aside[0].read_text() == '{"event": "half'


def test_the_clock_goes_on_where_it_stood(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run")
    first._base = 100.0  # a hundred seconds of work, without waiting for them
    first.event("evaluation.started", key=key("a"))
    first.record(record("a"))
    first.event("evaluation.completed", key=key("a"))
    first.event("campaign.interrupted")
    first.close()
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    late = json.loads(lines[-1]) | {"elapsed": 250.0}
    (tmp_path / "run" / "events.jsonl").write_text("\n".join([*lines[:-1], json.dumps(late)]) + "\n")
    second = RunFolder(tmp_path / "run")
    assert second.elapsed() < 1, "a replay begins at the beginning"
    second.recorded(key("a"))
    assert 250 <= second.elapsed() < 260, "after it, what was spent is spent"


def test_only_the_newest_folder_of_a_name_can_go_on(tmp_path: Path) -> None:
    old, new = RunFolder(tmp_path / "20260101-000000-p-s-aaaa"), RunFolder(tmp_path / "20260102-000000-p-s-bbbb")
    assert RunFolder.unfinished(tmp_path, "p-s") is None, "without settings nothing can go on"
    for folder in (old, new):
        folder.write_json("settings.json", {})
    assert RunFolder.unfinished(tmp_path, "p-s") == new.path
    assert RunFolder.unfinished(tmp_path, "*") == new.path
    assert RunFolder.unfinished(tmp_path, "p-t") is None
    new.write_json("summary.json", {})
    assert RunFolder.unfinished(tmp_path, "p-s") is None, "an older one was given up"
