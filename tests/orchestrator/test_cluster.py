"""Ray for real: actors that are killed are replaced, errors cross processes as they are, and a campaign loses nothing by it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.merger import Merger
from agents.skills import SkillError, skill_roots
from orchestrator.cluster import RayEngine
from sandbox.errors import IllegalPlan, UnavailableError
from tests.orchestrator.campaign_kit import SMOKE, command, events, reconcile, run_folder

TOLD: list[tuple[str, dict[str, Any]]] = []


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    made = RayEngine(lambda event, fields: TOLD.append((event, fields)), 2)
    yield made
    made.close()


class Counter:
    """Something with a memory of its own, to see what a replacement knows."""

    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, n: int) -> int:
        self.value += n
        return self.value

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def get(self) -> int:
        return self.value


def test_a_killed_worker_is_replaced_with_what_it_must_remember(engine: RayEngine) -> None:
    worker = engine.worker("counter", Counter, 10, remember=("add",))
    assert [worker.call("add", n).result() for n in (1, 2)] == [11, 13]
    os.kill(engine.ray.get(worker.up()), signal.SIGKILL)  # type: ignore[attr-defined]
    assert worker.call("get").result() == 13
    assert [e for e, f in TOLD if f.get("worker") == "counter"] == ["worker.lost", "worker.replaced"]


def test_a_call_that_kills_every_worker_ends_with_a_sentence(engine: RayEngine) -> None:
    with pytest.raises(UnavailableError, match="died 4 times on 'die'"):
        engine.worker("lemming", Counter, 0).call("die").result()


def test_errors_arrive_as_what_they_are(engine: RayEngine) -> None:
    merger = engine.worker("merger", Merger, "kimi_linear_decode", "tiny", 2, skill_roots())
    choices = merger.call("start").result()
    with pytest.raises(SkillError, match="has changed"):
        merger.call("implementation", choices["qkvg"].model_copy(update={"id": "x"})).result()
    spec = merger.call("spec", "unfused").result()
    spec["phases"]["kda"][1]["steps"] = spec["phases"]["kda"][0]["steps"] + spec["phases"]["kda"][1]["steps"]
    del spec["phases"]["kda"][0]
    with pytest.raises(IllegalPlan) as refused:
        merger.call("braid", spec, choices, "x").result()
    assert refused.value.violations


def test_no_token_is_left_behind(engine: RayEngine, tmp_path: Path) -> None:
    """Ray writes ~/.ray/auth_token at a first local start, which then locks `ray job submit` out."""
    code = "from orchestrator.cluster import RayEngine; RayEngine(lambda e, f: None, 1).close()"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120, capture_output=True)
    assert not (tmp_path / ".ray").exists()


def test_a_cluster_that_is_not_there_gets_one_sentence(tmp_path: Path) -> None:
    environment = os.environ | {"RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run(
        command("--size", "tiny", "--engine", "ray", home=tmp_path), env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2 and "--engine local" in done.stderr and "Traceback" not in done.stderr


def workers_of(pid: int) -> list[int]:
    """Process ids of Ray actors of ours among the descendants of a driver."""
    found, frontier = [], [pid]
    while frontier:
        parent = frontier.pop()
        children = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True).stdout.splitlines()
        for line in children:
            child, _, args = line.strip().partition(" ")
            frontier.append(int(child))
            if "ray::Host" in args:
                found.append(int(child))
    return found


def test_a_campaign_survives_the_death_of_its_actors(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--campaign", str(SMOKE), "--engine", "ray", "--plain", home=tmp_path), stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 240
    killed: set[int] = set()
    while process.poll() is None and time.monotonic() < deadline:
        busy = run_folder(tmp_path) / "events.jsonl" if list((tmp_path / "runs").glob("*-*-????")) else None
        if busy is not None and busy.exists() and "stage.judged" in busy.read_text() and len(killed) < 3:
            for pid in workers_of(process.pid):
                if pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                    break
        time.sleep(1.5)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert killed
    told = events(run_folder(tmp_path))
    lost = [e for e in told if e["event"] == "worker.lost"]
    replaced = [e for e in told if e["event"] == "worker.replaced"]
    assert len(lost) == len(replaced)
    reconcile(run_folder(tmp_path))
