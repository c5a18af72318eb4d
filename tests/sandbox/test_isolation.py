"""The box holds: against reading, writing, calling out, hogging and bombing."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.isolation import Limits
from sandbox.scratch import default_root
from sandbox.walls import Level, Walls
from tests.sandbox.box_kit import LEVELS, LIMITS, WITH_FILES_WALL, alive_with, python, walls_of


@pytest.fixture(params=LEVELS)
def any_walls(request: pytest.FixtureRequest) -> Walls:
    """Every level that stands here, in turn."""
    return walls_of(request.param)


@pytest.fixture(params=WITH_FILES_WALL)
def walled(request: pytest.FixtureRequest) -> Walls:
    """The levels with a file-system and a network wall."""
    return walls_of(request.param)


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
    walls = walls_of(Level.UID)
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
        for path in ({str(secret)!r}, "/etc/passwd", "/etc/hostname", "/root/.bashrc", "/home", "/var", "/run"):
            if os.path.exists(path):
                print(path)
    """
    assert python(walled, code).stdout == b""


def test_no_secret_of_our_environment_is_visible_anywhere(any_walls: Walls, monkeypatch: pytest.MonkeyPatch) -> None:
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
    result = python(walls_of(Level.BWRAP_CGROUP), code)
    assert result.report.limit == "memory"
    assert result.report.oom_kills >= 1
    assert result.report.wall_s < 8
    assert result.report.peak_memory_bytes is not None
    assert result.report.peak_memory_bytes <= LIMITS.memory_bytes


@pytest.mark.parametrize("level", [Level.BWRAP, Level.NAMESPACES, Level.UID])
def test_without_a_cgroup_a_memory_hog_gets_its_own_error(level: Level) -> None:
    result = python(walls_of(level), "hog = []\nwhile True: hog.append(bytearray(8 << 20))")
    assert result.report.exit_code == 1
    assert b"MemoryError" in result.stderr


def test_a_hundred_gigabytes_are_not_given(any_walls: Walls) -> None:
    result = python(any_walls, "b = bytearray(100 << 30)\nb[::4096] = b'1' * len(b[::4096])")
    assert result.report.limit == "memory" or b"MemoryError" in result.stderr


def test_filling_the_scratch_folder_is_bounded_by_memory() -> None:
    walls = walls_of(Level.BWRAP_CGROUP)
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
