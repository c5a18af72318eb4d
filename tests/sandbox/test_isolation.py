"""The box holds: against reading, writing, calling out, hogging, bombing, and outliving its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.box_errors import BoxError, NoWallsError
from sandbox.box_python import python_command
from sandbox.isolation import Box, BoxResult, Limits, open_box
from sandbox.scratch import default_root
from sandbox.walls import Level, Walls, probe_walls

LIMITS = Limits(
    wall_s=10, cpu_s=20, memory_bytes=256 << 20, processes=24, file_bytes=32 << 20, output_bytes=64 << 10
)
LEVELS = [Level.BWRAP_CGROUP, Level.BWRAP, Level.NAMESPACES, Level.UID]
WITH_FILES_WALL = LEVELS[:3]


@pytest.fixture(params=LEVELS)
def any_walls(request: pytest.FixtureRequest) -> Walls:
    """Every level that stands here, in turn."""
    return _walls(request.param)


@pytest.fixture(params=WITH_FILES_WALL)
def walled(request: pytest.FixtureRequest) -> Walls:
    """The levels with a file-system and a network wall."""
    return _walls(request.param)


def _walls(level: Level) -> Walls:
    try:
        return probe_walls(level=level)
    except NoWallsError as error:
        pytest.skip(str(error))


def python(walls: Walls, code: str, limits: Limits = LIMITS) -> BoxResult:
    """Run a Python text in a fresh box."""
    interpreter, binds = python_command(walls)
    with open_box(limits, walls, readonly=binds) as box:
        result = box.run([interpreter, "-I", "-S", "-c", textwrap.dedent(code)])
        assert not list(box.scratch.parent.glob("*.pid"))
    assert not box.scratch.exists()
    return result


def alive_with(mark: str) -> list[int]:
    """Processes of this machine whose command line holds the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


@pytest.fixture
def listener() -> Iterator[int]:
    """A TCP port of the host's loopback that somebody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_network_and_the_hosts_loopback_are_out_of_reach(walled: Walls, listener: int) -> None:
    with socket.create_connection(("127.0.0.1", listener), timeout=2):
        pass  # it does answer out here
    code = f"""
        import socket
        for where in (("127.0.0.1", {listener}), ("192.0.2.1", 80), ("8.8.8.8", 53)):
            try:
                socket.create_connection(where, timeout=1)
                print("reached", where)
            except OSError:
                pass
        print([name for _, name in socket.if_nameindex()])
    """
    result = python(walled, code)
    assert result.stdout == b"['lo']\n", result


def test_abstract_unix_sockets_of_the_host_are_out_of_reach(walled: Walls) -> None:
    name = f"kernelbraid-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        result = python(walled, f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')")
    assert result.report.exit_code == 1
    assert b"ConnectionRefused" in result.stderr


def test_nothing_but_the_own_folders_can_be_written(walled: Walls) -> None:
    code = """
        import os
        places = ["/", "/usr", "/usr/bin", "/in", "/etc", "/dev", "/dev/shm", "/proc", "/sys/devices/system/cpu", "/box", "/tmp"]
        for place in places:
            try:
                open(os.path.join(place, "written"), "w").close()
                print(place)
            except OSError:
                pass
    """
    assert python(walled, code).stdout.decode().split() == ["/box", "/tmp"]


def test_without_a_file_wall_the_own_uid_still_cannot_write_the_system(tmp_path: Path) -> None:
    walls = _walls(Level.UID)
    tmp_path.chmod(0o755)
    (tmp_path / "file").write_text("as it was")
    code = f"""
        for place in ("/usr/written", "/etc/written", {str(tmp_path / "file")!r}, {str(tmp_path / "new")!r}):
            try:
                open(place, "w").close()
                print(place)
            except OSError:
                pass
    """
    assert python(walls, code).stdout == b""
    assert (tmp_path / "file").read_text() == "as it was"


def test_private_files_of_the_host_are_not_there(walled: Walls, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the seed is 42")
    code = f"""
        import os
        for path in ({str(secret)!r}, "/etc/passwd", "/etc/hostname", "/root/.bashrc", "/home", "/var", "/work", "/run"):
            if os.path.exists(path):
                print(path)
    """
    assert python(walled, code).stdout == b""


def test_no_secret_of_our_environment_is_visible_anywhere(
    any_walls: Walls, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = f"sk-{uuid.uuid4().hex}"
    monkeypatch.setenv("SECRET_API_KEY", secret)
    code = """
        import os
        print(dict(os.environ))
        for name in os.listdir("/proc"):
            if name.isdigit():
                for file in ("environ", "cmdline"):
                    try:
                        print(name, open(f"/proc/{name}/{file}").read())
                    except OSError:
                        pass
    """
    result = python(any_walls, code)
    assert result.report.exit_code == 0, result
    assert secret.encode() not in result.stdout + result.stderr
    if any_walls.level in WITH_FILES_WALL:
        assert b"\n1 " in result.stdout, "pid 1 was looked at"


def test_processes_of_the_host_are_neither_seen_nor_signalled(walled: Walls) -> None:
    code = f"""
        import os, signal
        print(os.path.exists("/proc/{os.getpid()}/stat") and {os.getpid()} > 50)
        try:
            os.kill({os.getpid()}, 0)
            print("can signal")
        except OSError:
            pass
        try:
            os.kill(-1, signal.SIGKILL)
        except OSError:
            pass
    """
    result = python(walled, code)
    assert b"can signal" not in result.stdout


def test_a_memory_hog_ends_as_a_limit() -> None:
    code = "hog = []\nwhile True: hog.append(bytearray(8 << 20))"
    result = python(_walls(Level.BWRAP_CGROUP), code)
    assert result.report.limit == "memory"
    assert result.report.oom_kills >= 1
    assert result.report.wall_s < 8
    assert result.report.peak_memory_bytes is not None
    assert result.report.peak_memory_bytes <= LIMITS.memory_bytes


@pytest.mark.parametrize("level", [Level.BWRAP, Level.NAMESPACES, Level.UID])
def test_without_a_cgroup_a_memory_hog_gets_its_own_error(level: Level) -> None:
    result = python(_walls(level), "hog = []\nwhile True: hog.append(bytearray(8 << 20))")
    assert result.report.exit_code == 1
    assert b"MemoryError" in result.stderr


def test_a_hundred_gigabytes_are_not_given(any_walls: Walls) -> None:
    result = python(any_walls, "b = bytearray(100 << 30)\nb[::4096] = b'1' * len(b[::4096])")
    assert result.report.limit == "memory" or b"MemoryError" in result.stderr


def test_filling_the_scratch_folder_is_bounded_by_memory() -> None:
    walls = _walls(Level.BWRAP_CGROUP)
    if default_root(in_memory=True) == default_root(in_memory=False):
        pytest.skip("no memory disk here")
    code = """
        for n in range(100):
            with open(f"/box/{n}", "wb") as file:
                for _ in range(30):
                    file.write(bytes(1 << 20))
    """
    assert python(walls, code).report.limit == "memory"


def test_a_file_past_its_limit_is_refused(any_walls: Walls) -> None:
    result = python(any_walls, "f = open('huge', 'wb')\nwhile True: f.write(bytes(1 << 20))")
    assert b"File too large" in result.stderr
    assert result.report.exit_code == 1


FORK_BOMB = """
    import os, sys
    mark = "{mark}"
    refused = 0
    for _ in range(400):
        try:
            if os.fork() == 0:
                os.setsid()
                os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", mark])
        except OSError:
            refused += 1
    print(refused)
"""


def test_a_fork_bomb_is_bounded_and_gone(any_walls: Walls) -> None:
    mark = uuid.uuid4().hex
    if (
        any_walls.level is Level.BWRAP
        and "/root" in sys.base_prefix
        and not os.access("/usr/bin/python3", os.X_OK)
    ):
        pytest.skip("an own uid cannot reach this interpreter")
    result = python(any_walls, FORK_BOMB.format(mark=mark))
    assert int(result.stdout) >= 400 - LIMITS.processes
    if any_walls.has("cgroup-pids"):
        assert result.report.limit == "processes"
        assert result.report.fork_refusals > 0
    assert alive_with(mark) == []


def test_an_endless_loop_ends_at_the_wall(any_walls: Walls) -> None:
    limits = Limits(wall_s=0.7, cpu_s=20, memory_bytes=256 << 20)
    begin = time.monotonic()
    result = python(any_walls, "while True: pass", limits)
    assert result.report.limit == "wall"
    assert time.monotonic() - begin < 4


def test_a_spinning_process_ends_at_its_cpu_limit(any_walls: Walls) -> None:
    result = python(any_walls, "while True: pass", Limits(wall_s=30, cpu_s=1, memory_bytes=256 << 20))
    assert result.report.limit == "cpu"
    assert result.report.signal == "SIGXCPU"


def test_a_flood_of_output_is_capped_and_both_ends_are_kept(any_walls: Walls) -> None:
    result = python(any_walls, "print('first words')\nwhile True: print('x' * 1000)")
    assert result.report.limit == "output"
    assert len(result.stdout) < LIMITS.output_bytes + 1000
    assert result.stdout.startswith(b"first words")
    assert b"bytes left out" in result.stdout


def test_a_crash_is_named_by_its_signal(any_walls: Walls) -> None:
    result = python(any_walls, "import ctypes; ctypes.memset(0, 1, 1)")
    assert result.report.signal == "SIGSEGV"
    assert result.report.limit is None


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
    with open_box(LIMITS, _walls(Level.BWRAP_CGROUP), readonly=[(tmp_path / "data", "/data")]) as box:
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
