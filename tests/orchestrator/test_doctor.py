"""The doctor: what it says of this machine, and of traps that are laid for it in folders of their own."""

from __future__ import annotations

import io
import json
import shutil
import socket
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator import doctor
from orchestrator.doctor import Finding, Place, examine, exit_status, show_findings
from sandbox.compiler import find_compiler
from sandbox.walls import probe_walls


def place(folder: Path, unsafe: bool = False) -> Place:
    return Place(folder / "runs", folder / "cache", folder / "memory", unsafe)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {f.name: f for f in findings}


def test_this_machine(tmp_path: Path) -> None:
    found = examine(runs=tmp_path / "runs", cache=tmp_path / "cache", measure=True)
    named = by_name(found)
    assert {"python", "torch", "ray", "chroma", "embedding", "optuna", "compiler", "vector units", "CPUs", "load", "box", "memory", "cache folder",
            "runs folder", "GPU", "memory of tricks", "skills", "run folders", "memory bandwidth"} <= set(named)  # fmt: skip
    assert named["torch"].ok == "ok" and named["python"].ok == "ok"
    assert find_compiler().path in named["compiler"].detail
    assert str(probe_walls(unsafe=True).level) in named["box"].detail
    assert {f"wall {n}" for n, _ in probe_walls(unsafe=True).missing} == {n for n in named if n.startswith("wall ")}
    rate = float(named["memory bandwidth"].detail.split()[0])
    assert 1.0 < rate < 5000.0, "GB/s"
    assert all(f.advice for f in found if f.ok != "ok"), "what is not well comes with what to do"
    assert not any("could not be looked at" in f.detail for f in found)
    assert not list(tmp_path.iterdir()), "a doctor changes nothing"


def test_the_table_and_the_exit_status() -> None:
    found = [Finding("a", "ok", "fine [b]"), Finding("b", "warning", "mind it", "do this"), Finding("c", "missing", "gone", "install c")]
    out = io.StringIO()
    show_findings(found, Console(file=out, width=60))
    text = out.getvalue()
    assert "fine [b]" in text and "-> do this" in text and "-> install c" in text
    assert "1 ok, 1 warnings, 1 missing: a campaign cannot run here yet" in text
    assert exit_status(found) == 1 and exit_status(found[:2]) == 0


def test_ray_traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    here = place(tmp_path)
    assert by_name(doctor._ray_traps(here))["Ray traps"].ok == "ok"
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret-of-the-user")
    (tmp_path / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        assert by_name(doctor._ray_traps(here))["Ray cluster"].ok == "ok"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    named = by_name(doctor._ray_traps(here))
    assert "Ray cluster" not in named and "nothing answers" in named["Ray cluster file"].detail
    assert "RAY_AUTH_MODE" in named["Ray token"].advice and "secret-of-the-user" not in str(named)
    assert named["RAY_ADDRESS"].ok == "warning"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert "Ray token" not in by_name(doctor._ray_traps(here))


def test_unfinished_run_folders(tmp_path: Path) -> None:
    here = place(tmp_path)
    assert doctor._unfinished(here)[0].ok == "ok"
    for name, done in (("1", True), ("2", False)):
        folder = here.runs / name
        folder.mkdir(parents=True)
        (folder / "settings.json").write_text("{}")
        (folder / "events.jsonl").write_text(json.dumps({"event": "campaign.started"}) + "\n")
        if done:
            (folder / "summary.json").write_text("{}")
    found = doctor._unfinished(here)[0]
    assert found.ok == "warning" and found.detail == f"1 of 2 unfinished; the newest is {here.runs / '2'}"
    (here.runs / "2" / "events.jsonl").write_text("torn")
    assert doctor._unfinished(here)[0].detail.endswith("(not of a campaign)")


def test_a_memory_folder_is_counted(tmp_path: Path, repo: Path) -> None:
    here = place(tmp_path)
    assert doctor._store(here)[0].detail.startswith("none yet")
    here.memory.mkdir()
    shutil.copy(repo / "tests" / "memory" / "tricks_version_1.jsonl", here.memory / "tricks.jsonl")
    before = sorted(p.name for p in here.memory.iterdir())
    found = doctor._store(here)[0]
    assert found.ok == "ok" and "tricks" in found.detail and "no owner" in found.detail
    assert sorted(p.name for p in here.memory.iterdir()) == before


def test_a_folder_that_cannot_be_made_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = doctor._disk(place(tmp_path / "file"))
    assert [f.ok for f in found] == ["missing", "missing"] and "--cache" in found[0].advice and "--runs" in found[1].advice


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    find_compiler.cache_clear()
    try:
        found = doctor._compiler(place(tmp_path))[0]
    finally:
        find_compiler.cache_clear()
    assert found.ok == "missing" and "install g++" in found.advice and exit_status([found]) == 1


def test_a_library_that_fails_or_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = doctor._try_library("x", "import no_such_library", True, "pip install it")[0]
    assert fails.ok == "missing" and "no_such_library" in fails.detail and fails.advice == "pip install it"
    monkeypatch.setattr(doctor, "TRY_SECONDS", 1.0)
    assert doctor._try_library("y", "import time; time.sleep(60)", False, "a")[0] == Finding("y", "warning", "did not finish in 1 s", "a")


def test_the_embedding_is_tried_without_a_network() -> None:
    probe = doctor._NO_NETWORK + "import socket\nsocket.create_connection(('127.0.0.1', 9))"
    assert doctor._try_library("net", probe, True, "a")[0].detail == "OSError: network is off"


def test_a_check_that_falls_ill_is_a_warning() -> None:
    def ill() -> list[Finding]:
        raise ValueError("oh")

    assert doctor._guard("x", ill)[0].ok == "warning" and "ValueError: oh" in doctor._guard("x", ill)[0].detail
