"""Whole campaigns at the smallest size: a script from start to report, memory, kills, mistakes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from experiments.kill_campaign import still_running
from sandbox.evaluation import read_chain
from tests.orchestrator.campaign_kit import REPO, SMOKE, call, command, events, reconcile, run_folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def finished(home: Path) -> tuple[Path, dict[str, object], str]:
    """One campaign that replays the smoke script."""
    done = call("--campaign", str(SMOKE), "--json", home=home)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, "stdout is data"
    return run_folder(home), json.loads(done.stdout), done.stderr


def test_a_campaign_ends_with_a_verified_megakernel(finished: tuple[Path, dict[str, object], str]) -> None:
    folder, summary, said = finished
    assert summary["status"] == "passed" and summary["passed"]
    assert summary["run_folder"] == str(folder) and folder.is_absolute()
    assert summary["dispatches_per_step"] == 1
    records = read_chain(folder / "evaluations.jsonl")
    assert len(records) == summary["evaluations"]
    assert records[-1].purpose == "regrade" and records[-1].candidate == summary["candidate"]
    assert set(records[-1].times.vs) >= {"fused", "baseline"} if records[-1].times else False
    assert str(folder) in said
    assert {"summary.json", "settings.json", "environment.json", "events.jsonl", "report.html"} <= {p.name for p in folder.iterdir()}
    reconcile(folder)


def test_every_entry_of_the_script_was_judged(finished: tuple[Path, dict[str, object], str]) -> None:
    told = events(finished[0])
    stages = {e["choice"]: e for e in told if e["event"] == "stage.judged"}
    assert len(stages) == 4
    assert all(e["status"] == "passed" and e["ratio"] > 0 for c, e in stages.items() if "LEVELS=1" not in c)
    plans = [e for e in told if e["event"] == "proposal.made" and e["proposal"]["change"]["rewrites"]]
    assert len(plans) == 1
    assert [e for e in told if e["event"] == "evaluation.completed" and e["proposal"] == plans[0]["proposal"]["number"]]


def test_two_process_pairs_admit_nothing(finished: tuple[Path, dict[str, object], str], home: Path) -> None:
    assert finished[1]["tricks_admitted"] == []
    assert not [e for e in events(finished[0]) if e["event"] == "trick.admitted"]


def test_the_kernel_of_the_run_compiles_by_itself(finished: tuple[Path, dict[str, object], str], tmp_path: Path) -> None:
    kernel = Path(str(finished[1]["kernel"]))
    built = subprocess.run(
        ["g++", "-O1", "-march=native", "-std=c++20", "-fPIC", "-shared", "-pthread", "-Wno-psabi", str(kernel), "-o", str(tmp_path / "k.so")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr


def test_a_finished_campaign_is_followed_by_a_new_one(finished: tuple[Path, dict[str, object], str], home: Path) -> None:
    process = subprocess.Popen(command("--campaign", str(SMOKE), home=home), stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while run_folder(home) == finished[0] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert run_folder(home) != finished[0]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130, "a termination ends tidily"
    told = events(run_folder(home))
    assert told[-1]["event"] == "campaign.interrupted"
    assert (run_folder(home) / "report.html").exists()


def test_killed_at_random_moments_it_goes_on_and_ends(tmp_path: Path) -> None:
    """SIGKILL to the driver, twice; the same command then finishes what was begun, and nothing is judged twice."""
    moments = random.Random(os.getpid())
    for _ in range(2):
        process = subprocess.Popen(command("--campaign", str(SMOKE), home=tmp_path), stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(moments.uniform(4, 20))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 5
        while still_running(actors=False) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not still_running(actors=False), "a candidate outlived the judge"
    done = call("--campaign", str(SMOKE), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").glob("*-*-????"))) == 1, "it went on in the same folder"
    reconcile(run_folder(tmp_path))


def test_other_settings_than_those_of_the_unfinished_run_are_refused(tmp_path: Path) -> None:
    process = subprocess.Popen(command("--campaign", str(SMOKE), home=tmp_path), stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "runs").glob("*/settings.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    busy = call("--campaign", str(SMOKE), home=tmp_path)
    process.kill()
    process.wait()
    assert busy.returncode == 2 and "another process" in busy.stderr
    other = call("--size", "tiny", "--pairs", "9", home=tmp_path)
    assert other.returncode == 2 and "pairs 3, not 9" in other.stderr and "--new" in other.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--size", "enormous"], "has no size"), (["--rivals", "nobody"], "no baseline 'nobody'"), (["--specialists", "poet"], "no specialist"),
        (["--threads", "4096"], "ask for fewer"), (["--skills", "/nowhere"], "no skills folder"), (["--problem", "riddle"], "no problem"),
        (["--campaign", "/nowhere.yaml"], "no campaign file"), (["--minutes", "0"], "minutes"), (["--engine", "steam"], "engine"),
        (["--script", "/nowhere.yaml"], "no script"), (["--opponents", "nobody"], "no plan 'nobody'"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(tmp_path: Path, options: list[str], said: str) -> None:
    done = call(*options, home=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "what can be known is refused before anything is made"


def test_the_checkout_has_campaign_files_that_resolve() -> None:
    from orchestrator.settings import resolve

    for path in (REPO / "experiments" / "campaigns").glob("*.yaml"):
        if not path.name.endswith(".script.yaml"):
            resolve(path, {})
