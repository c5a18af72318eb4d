"""The verb `memory` as a user types it, mounted in a small app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from memory.change import Change, Choice
from memory.store import INDEX, MemoryStore
from memory.trick import Use
from orchestrator import cli_memory
from tests.memory.kit import CLAIMS, proven, recorded

HOSTILE = "up \x1b[2Jis \u202efaster\nsecond line"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder whose memory holds three tricks; one is stale, one was used, one has hostile text."""
    path = tmp_path_factory.mktemp("runs")
    change = Change(choices={"up": Choice(implementation="moe-experts/up-digits", knobs={"LEVELS": 2}, id="i")})
    with MemoryStore(path / "memory") as store:
        tricks = [proven(0, claim=CLAIMS[0]), proven(1, claim=CLAIMS[1])]
        tricks.append(
            proven(2, claim=HOSTILE, change=change, slots=("up",), sources={"i": "int x;\x1b[31m\n\tint y;\n"}, kind="implementation")
        )
        for trick, proof in tricks:
            assert store.admit(trick, proof, "unfused") == ""
        store.set_standing(tricks[0][0].id, "stale", recorded(ratio={"low": 0.99, "median": 1.0, "high": 1.3}), "unfused", "newer machine")
        store.used(Use(trick=tricks[1][0].id, campaign="night", proposal=4, outcome="helped"))
    return path


def call(*words: str | Path) -> Any:
    """Result of `app memory WORDS`."""
    app = typer.Typer()
    app.add_typer(cli_memory.app, name="memory")
    app.command("other")(lambda: None)
    return CliRunner().invoke(app, ["memory", *map(str, words)])


def last(result: Any) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_list_has_one_clean_line_per_trick(runs: Path) -> None:
    result = call("list", "--runs", runs)
    lines = result.stdout.split("\n")[:-1]
    assert len(lines) == 3 and result.exit_code == 0
    assert "1.100x (1.050 to 1.200)  stale     p/s cpu on c (2 cores, x): joining the norm phase" in lines[0]
    assert lines[2].endswith("up \ufffd[2Jis \ufffdfaster second line")
    found = last(call("list", "--folder", runs / "memory", "--json", "--slot", "up"))
    assert [(t["candidate"], t["standing"], "sources" in t) for t in found] == [("c2", "verified", False)]
    assert [t["candidate"] for t in last(call("list", "--runs", runs, "--json", "--standing", "stale"))] == ["c0"]
    assert call("list", "--runs", runs, "--standing", "loved").exit_code == 2


def test_show_has_proof_sources_and_what_became_of_it(runs: Path) -> None:
    tricks = last(call("list", "--runs", runs, "--json"))
    pages = [call("show", t["id"][:12], "--runs", runs).stdout for t in tricks]
    for page, trick in zip(pages, tricks, strict=True):
        assert trick["evaluations"][0] in page and "kernelbraid run --problem p --size s" in page and "5 process pairs" in page
    assert "became stale by evaluation" in pages[0] and "newer machine" in pages[0]
    assert "used by proposal 4 of night: helped" in pages[1] and "helped 1, no difference 0" in pages[1]
    assert "up: moe-experts/up-digits{LEVELS=2}" in pages[2] and "int x;\ufffd[31m\n\tint y;\n" in pages[2] and "\x1b" not in pages[2]
    whole = last(call("show", tricks[2]["id"], "--runs", runs, "--json"))
    assert whole["sources"] == {"i": "int x;\x1b[31m\n\tint y;\n"} and whole["claim"] == HOSTILE
    nobody = call("show", "zzz", "--runs", runs)
    assert nobody.exit_code == 2 and "error: no trick 'zzz'" in nobody.stderr and nobody.stdout == ""


def test_search_stats_export(runs: Path, tmp_path: Path) -> None:
    found = last(call("search", "router without an all-to-all", "--runs", runs, "--json", "-n", "2"))
    assert len(found) == 2 and found[0]["candidate"] == "c1" and found[0]["score"] > found[1]["score"]
    facts = last(call("stats", "--runs", runs, "--json"))
    assert facts["standings"] == {"stale": 1, "verified": 2} and facts["uses"] == {"helped": 1} and facts["records"] == 5
    assert last(call("export", tmp_path / "all.json", "--runs", runs, "--json"))["records"] == 5
    assert len(json.loads((tmp_path / "all.json").read_text())["tricks"]) == 3
    (tmp_path / "a folder").mkdir()
    assert call("export", tmp_path / "a folder", "--runs", runs).exit_code == 2


def test_rebuild_needs_the_memory_for_itself(runs: Path) -> None:
    with MemoryStore(runs / "memory"):
        busy = call("rebuild", "--runs", runs)
        assert busy.exit_code == 2 and "is owned by process" in busy.stderr
        assert len(last(call("list", "--runs", runs, "--json"))) == 3
    assert last(call("rebuild", "--runs", runs, "--json"))["index"] == 3
    assert (runs / "memory" / INDEX / "chroma.sqlite3").exists()


@pytest.mark.parametrize("words", [["list"], ["search", "x"]])
def test_an_empty_memory_is_said_on_stderr_and_stays_unmade(tmp_path: Path, words: list[str]) -> None:
    result = call(*words, "--folder", tmp_path / "none", "--json")
    assert result.exit_code == 0 and result.stdout == "[]\n" and "no tricks yet in" in result.stderr
    assert not (tmp_path / "none").exists()


def test_a_broken_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tricks.jsonl").write_text("{\n")
    result = call("list", "--folder", tmp_path)
    assert result.exit_code == 2 and "tricks.jsonl:1: this is no record" in result.stderr and "Traceback" not in result.stderr
