"""What a box leaves behind: no process, no folder, no group; and what may be read from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path

import pytest

from sandbox.box_errors import BoxError
from sandbox.box_python import python_command
from sandbox.isolation import Box, Limits, open_box
from sandbox.walls import Level, Walls, probe_walls
from tests.sandbox.box_kit import LEVELS, LIMITS, alive_with, python, walls_of


@pytest.fixture(params=LEVELS)
def any_walls(request: pytest.FixtureRequest) -> Walls:
    """Every level that stands here, in turn."""
    return walls_of(request.param)


ESCAPES = """
    import os, sys, time
    mark = "{mark}"
    sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)", mark]
    for _ in range(2):                       # double forks into sessions of their own, parents gone
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setpgid(0, 0)
                os.close(1); os.close(2)
                os.execv(sys.executable, sleep)
            os._exit(0)
    if os.fork() == 0:                       # one that ignores what can be ignored
        import signal
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        os.execv(sys.executable, sleep)
    time.sleep({wait})
"""


@pytest.mark.parametrize("ending", ["hang", "exit", "close", "stop"])
def test_no_grandchild_outlives_the_box(any_walls: Walls, ending: str) -> None:
    mark = uuid.uuid4().hex
    interpreter, binds = python_command(any_walls)
    code = textwrap.dedent(ESCAPES.format(mark=mark, wait=0.5 if ending == "exit" else 60))
    limits = Limits(wall_s=1.0 if ending == "hang" else 20.0, memory_bytes=256 << 20, processes=24)
    command = [interpreter, "-I", "-S", "-c", code]
    with open_box(limits, any_walls, readonly=binds) as box:
        if ending in ("hang", "exit"):
            assert box.run(command).report.limit == ("wall" if ending == "hang" else None)
        else:
            box.popen(command)
            deadline = time.monotonic() + 15
            while len(alive_with("\0" + mark)) < 3 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert len(alive_with("\0" + mark)) == 3, "they did start"
            if ending == "stop":
                for pid in alive_with(mark):
                    os.kill(pid, signal.SIGSTOP)
                box.kill()
                assert alive_with(mark) == []
    assert alive_with(mark) == []


def test_killing_at_once_leaves_nothing(any_walls: Walls) -> None:
    """The launcher itself may still be building the box."""
    mark = uuid.uuid4().hex
    for pause in (0.0, 0.001, 0.003, 0.006, 0.012):
        with open_box(LIMITS, any_walls) as box:
            box.popen(["/bin/sh", "-c", f"sleep 60; : {mark}"])
            time.sleep(pause)
    assert alive_with(mark) == []


def test_a_box_dies_with_its_owner_and_the_next_one_sweeps(tmp_path: Path) -> None:
    """kill -9 of the owner: its processes end, and the next box removes its folder and groups."""
    mark = uuid.uuid4().hex
    program = f"""
import sys, time
from pathlib import Path
from sandbox.isolation import Limits, open_box
from sandbox.walls import probe_walls
box = open_box(Limits(wall_s=60), probe_walls(), scratch=Path({str(tmp_path)!r}))
box.popen(["/bin/sh", "-c", "sleep 60; : {mark}"])
print(box.scratch, *(box._cgroup.folders if box._cgroup else []), flush=True)
time.sleep(60)
"""
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root)
    assert owner.stdout is not None
    left = [Path(word) for word in owner.stdout.readline().split()]
    assert all(path.exists() for path in left)
    with open_box(LIMITS, probe_walls(), scratch=tmp_path):
        assert all(path.exists() for path in left), "a living owner's box is left alone"
    owner.kill()
    owner.wait()
    owner.stdout.close()
    with open_box(LIMITS, probe_walls(), scratch=tmp_path):
        deadline = time.monotonic() + 5
        while alive_with(mark) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert alive_with(mark) == []
    assert not any(path.exists() for path in left)
    assert not list(tmp_path.glob("box-*"))


def test_a_hostile_scratch_folder_is_removed(any_walls: Walls, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("here")
    code = f"""
        import os
        os.symlink({str(outside)!r}, "link")
        os.mkfifo("fifo")
        os.mkdir("closed"); open("closed/file", "w").close(); os.chmod("closed", 0)
        for _ in range(1100):
            os.mkdir("deep"); os.chdir("deep")
    """
    assert python(any_walls, code).report.exit_code == 0
    assert (outside / "precious").read_text() == "here"


def test_only_regular_files_of_bounded_size_are_read_back() -> None:
    code = """
        import os
        open("good", "w").write("fine")
        open("large", "wb").write(bytes(1000))
        os.symlink("/etc/passwd", "link"); os.mkfifo("fifo"); os.mkdir("folder")
    """
    walls = probe_walls()
    interpreter, binds = python_command(walls)
    with open_box(LIMITS, walls, readonly=binds) as box:
        box.run([interpreter, "-I", "-S", "-c", textwrap.dedent(code)])
        assert box.read_back("good", 100) == b"fine"
        for name in ("large", "link", "fifo", "folder", "absent", "../in/x"):
            with pytest.raises(BoxError):
                box.read_back(name, 100)


def test_boxes_in_many_threads_do_not_disturb_each_other() -> None:
    walls = probe_walls()
    answers: dict[int, bytes] = {}

    def one(number: int) -> None:
        with open_box(LIMITS, walls) as box:
            answers[number] = box.run(["/bin/sh", "-c", f"echo {number} > n; cat n; ls /box"]).stdout

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number}\nn\n".encode() for number in range(8)}


def test_paths_are_translated_and_unseen_ones_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with open_box(LIMITS, walls_of(Level.BWRAP_CGROUP), readonly=[(tmp_path / "data", "/data")]) as box:
        assert box.inside(box.scratch / "a" / "b") == "/box/a/b"
        assert box.put("deep/er/file", b"words") == "/in/deep/er/file"
        assert box.inside(tmp_path / "data" / "x") == "/data/x"
        assert box.run(["/bin/cat", "/in/deep/er/file"]).stdout == b"words"
        with pytest.raises(BoxError, match="not visible"):
            box.inside(tmp_path / "elsewhere")
    with pytest.raises(BoxError, match="must exist"):
        open_box(LIMITS, probe_walls(), readonly=[(tmp_path / "absent", "/data")])


def test_a_closed_box_runs_nothing_and_still_reports() -> None:
    box: Box = open_box(LIMITS, probe_walls())
    with box:
        box.run(["/bin/sh", "-c", "exit 7"])
    assert box.report().exit_code == 7
    with pytest.raises(BoxError, match="closed"):
        box.popen(["/usr/bin/true"])
