"""Timing and working on one set of CPUs: exclusive against shared, across processes, and nothing held by the dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandbox import quiet

HOLD = """
import sys, time
sys.path.insert(0, {repo!r})
import sandbox.quiet as quiet
from pathlib import Path
quiet.lock_folder = lambda: Path({folder!r})
with quiet.{mode}([0, 1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(quiet, "lock_folder", lambda: folder)
    return folder


def holder(repo: Path, folder: Path, mode: str) -> subprocess.Popen[str]:
    code = HOLD.format(repo=str(repo), folder=str(folder), mode=mode)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def acquired(mode: str, cpus: list[int], within: float) -> bool:
    got = threading.Event()

    def take() -> None:
        with getattr(quiet, mode)(cpus):
            got.set()

    threading.Thread(target=take, daemon=True).start()
    return got.wait(within)


@pytest.mark.parametrize(("held", "wanted", "free"), [("timing", "timing", False), ("timing", "working", False), ("working", "timing", False),
                                                      ("working", "working", True)])  # fmt: skip
def test_who_waits_for_whom(repo: Path, own_folder: Path, held: str, wanted: str, free: bool) -> None:
    process = holder(repo, own_folder, held)
    try:
        assert acquired(wanted, [1], 0.5) is free
        assert acquired(wanted, [2, 3], 5), "other CPUs are nobody's"
    finally:
        process.kill()
        process.wait()


def test_a_dead_owner_holds_nothing(repo: Path, own_folder: Path) -> None:
    process = holder(repo, own_folder, "timing")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert acquired("timing", [0, 1], 5)


def test_a_stream_of_workers_does_not_starve_whoever_times() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with quiet.working([0]):
                time.sleep(0.02)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        began = time.monotonic()
        assert acquired("timing", [0], 5)
        assert time.monotonic() - began < 2
    finally:
        stop.set()


def test_the_compilers_cpus_are_given_back() -> None:
    before = os.sched_getaffinity(0)
    with quiet.on_cpus([min(before)]):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
