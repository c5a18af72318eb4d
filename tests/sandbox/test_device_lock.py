"""One GPU, one owner: others wait aloud, and nobody waits for the dead."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandbox import quiet
from sandbox.device_lock import announced, holder
from sandbox.quiet import on_device

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
HOLD = """
import sys, time
sys.path.insert(0, {repo!r})
import sandbox.quiet as quiet
from pathlib import Path
quiet.lock_folder = lambda: Path({folder!r})
with quiet.on_device({uuid!r}):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(quiet, "lock_folder", lambda: folder)
    return folder


@pytest.fixture
def owner(repo: Path, own_folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the device."""
    code = HOLD.format(repo=str(repo), folder=str(own_folder), uuid=UUID)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


class Waiter:
    """A thread that wants the device, and what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.waited: float | None = None
        self.got = threading.Event()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with on_device(UUID, self.said.append) as self.waited:
            self.got.set()


def test_a_free_device_is_taken_at_once_and_in_silence() -> None:
    said: list[str] = []
    with on_device(UUID, said.append) as waited:
        assert waited < 1
    assert said == []


def test_a_waiter_is_told_who_holds_it_and_gets_it_when_the_owner_is_killed(owner: subprocess.Popen[str]) -> None:
    waiter = Waiter()
    try:
        assert not waiter.got.wait(0.5)
        assert waiter.said == [f"waiting for GPU {UUID}: process {owner.pid} uses it"]
    finally:
        end(owner)
    assert waiter.got.wait(5)
    assert waiter.waited is not None and waiter.waited >= 0.4, "the wait is known, so that it is nobody's time"


def test_a_long_wait_is_repeated_and_ends_with_it(owner: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "announced", functools.partial(announced, again_s=0.1))
    waiter = Waiter()
    try:
        assert not waiter.got.wait(0.6)
        assert sum("still waiting" in text for text in waiter.said) >= 2
    finally:
        end(owner)
    assert waiter.got.wait(5)
    told = len(waiter.said)
    time.sleep(0.3)
    assert len(waiter.said) == told


def test_nobody_waits_for_the_dead(owner: subprocess.Popen[str]) -> None:
    end(owner)
    said: list[str] = []
    with on_device(UUID, said.append) as waited:
        assert waited < 1
    assert said == []


def test_other_devices_are_free(owner: subprocess.Popen[str]) -> None:
    try:
        with on_device("GPU-other") as waited:
            assert waited < 1
    finally:
        end(owner)


def test_the_holder_of_a_file_is_found(own_folder: Path) -> None:
    with on_device(UUID):
        fd = os.open(own_folder / f"{UUID}.lock", os.O_RDONLY)
        assert holder(fd) == os.getpid()
        os.close(fd)
    fd = os.open(own_folder / f"{UUID}.lock", os.O_RDONLY)
    assert holder(fd) is None
    os.close(fd)
