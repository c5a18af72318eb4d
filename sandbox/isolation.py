"""The box: one command, started behind the walls of this machine, that ends wholly and always.

    with open_box(Limits(wall_s=10), probe_walls()) as box:
        seen_as = box.put("case.bin", data)            # the box reads it at /in/case.bin
        result = box.run(["/usr/bin/wc", "-c", seen_as])

A box must be opened by a thread that outlives it: the kernel ends the box with the thread that started it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sandbox import enclosure, seccomp
from sandbox.box_errors import BoxError
from sandbox.box_output import Pump
from sandbox.box_python import open_to_all
from sandbox.cgroups import Cgroup
from sandbox.endings import children_of, end_and_wait, end_uid
from sandbox.scratch import PrivateFolder, default_root
from sandbox.walls import Level, Walls

_CANNOT_JOIN = 97


@dataclass(frozen=True)
class Limits:
    """What a box may use. cpu_s is per process; file_bytes per file; output_bytes for all it prints."""

    wall_s: float = 60.0
    cpu_s: int = 120
    memory_bytes: int = 4 << 30
    processes: int = 64
    file_bytes: int = 1 << 30
    output_bytes: int = 1 << 20
    open_files: int = 256


@dataclass(frozen=True)
class BoxReport:
    """How a command ended. `limit` is None, wall, cpu, memory, processes, output or file."""

    exit_code: int | None
    signal: str | None
    limit: str | None
    oom_kills: int
    fork_refusals: int
    peak_memory_bytes: int | None
    wall_s: float


@dataclass(frozen=True)
class BoxResult:
    """A finished command: its (capped) output and how it ended."""

    stdout: bytes
    stderr: bytes
    report: BoxReport


class Box:
    """One box. `popen` or `run` one command at a time; `kill` ends everything in it; `close` removes it."""

    def __init__(
        self,
        limits: Limits,
        walls: Walls,
        readonly: Sequence[tuple[Path, str]] = (),
        scratch: Path | None = None,
        environment: Mapping[str, str] | None = None,
        devices: Sequence[Path] = (),
    ) -> None:
        """readonly: (existing path here, absolute path inside). scratch: parent of the box's private folder.

        environment is all the command sees beside PATH, HOME, TMPDIR and LANG. devices are bound with access; with any,
        the addresses of the box are not limited, only its memory.
        """
        self.limits, self.walls = limits, walls
        for source, inside in readonly:
            if not source.exists() or not inside.startswith("/"):
                raise BoxError(f"cannot show {source} as {inside}: it must exist, and {inside} be absolute")
        binds = tuple((source.resolve(), inside) for source, inside in readonly)
        self.notes: list[str] = []
        if devices and walls.cgroups.memory is None:
            self.notes.append("memory not held: a device needs far more addresses than memory, and there is no control group")
        self._folder = PrivateFolder(scratch or default_root(in_memory=walls.cgroups.memory is not None), self._wants_uid(binds))
        self._cgroup: Cgroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started = self._ended = 0.0
        self._stopped_by: str | None = None
        self.joined = False  # set by who heard from the command: an exit code of its own is then never ours
        self._closed = False
        self._final: BoxReport | None = None
        self._killing = threading.RLock()  # a pump may kill while the owner does
        self._enclosure = enclosure.Enclosure(
            self._folder.scratch,
            self._folder.inbox,
            binds,
            tuple(devices),
            dict(environment or {}),
            min(256 << 20, limits.memory_bytes),
        )
        try:
            if walls.cgroups.memory or walls.cgroups.pids:
                # sh, bwrap and its pid 1 count too, but only for the moment
                self._cgroup = Cgroup(walls.cgroups, self._folder.path.name, limits.memory_bytes, limits.processes + 2)
                self._folder.note_groups(self._cgroup.folders)
        except OSError as error:
            self._folder.close()
            raise BoxError(f"cannot make the control groups of the box: {error}") from error

    def _wants_uid(self, binds: tuple[tuple[Path, str], ...]) -> bool:
        """Whether to run under an own uid: where the level needs it, or nothing else bounds the processes."""
        level = self.walls.level
        if not self.walls.has("unprivileged-uid") or level not in (Level.BWRAP, Level.NAMESPACES, Level.UID):
            return False
        if level is Level.UID:
            return True
        if level is Level.BWRAP and self.walls.has("cgroup-pids"):
            return False
        # bwrap runs as the uid and must reach what it binds; by hand we bind first, so only the end counts
        private = [str(s) for s, _ in binds if not open_to_all(s, parents=level is Level.BWRAP)]
        if private:
            self.notes.append(f"process count not held: {private[0]} is private, so the uid stays ours")
        return not private

    @property
    def scratch(self) -> Path:
        """The folder the box writes to, here. Never write into it while the box runs: use `put`."""
        return self._folder.scratch

    @property
    def inbox(self) -> Path:
        """The folder only the parent writes to."""
        return self._folder.inbox

    def inside(self, path: Path) -> str:
        """The name inside the box of a path in scratch, inbox or a bound folder."""
        if self.walls.level in (Level.UID, Level.NONE):
            return str(path)
        roots = [(self.scratch, enclosure.SCRATCH), (self.inbox, enclosure.INBOX), *self._enclosure.binds]
        for root, inside in roots:
            if path == root or root in path.parents:
                tail = path.relative_to(root)
                return inside if tail == Path() else f"{inside.rstrip('/')}/{tail}"
        raise BoxError(f"{path} is not visible in the box; bind it, or put its bytes into the inbox")

    def put(self, name: str, data: bytes | bytearray | memoryview) -> str:
        """Write a file the box can read but not change; returns its name inside."""
        path = self.inbox / name
        for folder in reversed(path.relative_to(self.inbox).parents[:-1]):
            (self.inbox / folder).mkdir(mode=0o755, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)  # the box may run under another uid, and our umask may be strict
        return self.inside(path)

    def read_back(self, name: str, max_bytes: int) -> bytes:
        """A regular file of the scratch folder, at most max_bytes; links and special files are refused."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self.scratch / Path(name).name, flags)
        except OSError as error:
            raise BoxError(f"the box left no readable file {name}: {error.strerror}") from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
                raise BoxError(f"{name} ({status.st_size} bytes) is no regular file of at most {max_bytes}")
            with open(fd, "rb", closefd=False) as file:
                return file.read(max_bytes)
        finally:
            os.close(fd)

    def command_line(self, command: Sequence[str], seccomp_fd: int | None) -> list[str]:
        """The whole argv for a command in this box."""
        limits, uid = self.limits, self._folder.uid
        match self.walls.level:
            case Level.BWRAP_CGROUP | Level.BWRAP:
                assert self.walls.bwrap is not None
                prefix = enclosure.bwrap_argv(self.walls.bwrap, self._enclosure, seccomp_fd)
                prefix = [*(enclosure.become_argv(uid) if uid is not None else []), *prefix]
            case Level.NAMESPACES:
                root = self._folder.path / "root"
                root.mkdir(exist_ok=True)
                prefix = enclosure.namespaces_argv(root, self._enclosure, uid)
            case _:
                prefix = enclosure.uid_argv(self._enclosure, uid)
        rlimits = {"core": 0, "cpu": limits.cpu_s, "fsize": limits.file_bytes, "nofile": limits.open_files}
        if self.walls.cgroups.memory is None and not self._enclosure.devices:
            rlimits["as"] = limits.memory_bytes  # devices reserve far more addresses than memory
        if uid is not None:
            # bwrap and its pid 1 have the uid too
            rlimits["nproc"] = limits.processes + (2 if self.walls.level in (Level.BWRAP_CGROUP, Level.BWRAP) else 0)
        if uid is None and self._counts_per_namespace():
            command = enclosure.limited({"nproc": limits.processes + 2}, command)
        argv = [*prefix, *command]
        if self.walls.has("rlimits"):
            argv = enclosure.limited(rlimits, argv)
        return enclosure.joined(self._cgroup.join_files if self._cgroup else [], argv)

    def _counts_per_namespace(self) -> bool:
        """Whether RLIMIT_NPROC, set inside, counts the box's processes alone: since Linux 5.14, unless root's."""
        release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
        walled = self.walls.level in (Level.BWRAP, Level.NAMESPACES)
        return walled and os.geteuid() != 0 and release >= (5, 14)

    def popen(self, command: Sequence[str], *, stdin: bool = False) -> subprocess.Popen[bytes]:
        """Start a command with pipes for stdout and stderr (and stdin if asked). One at a time."""
        if self._closed or (self._process is not None and self._process.poll() is None):
            raise BoxError("this box is closed or still runs a command; open another one")
        fd = seccomp.filter_fd() if self.walls.has("seccomp") else None
        try:
            self._stopped_by = None
            self._started, self._ended = time.monotonic(), 0.0
            self._process = subprocess.Popen(
                self.command_line(command, fd),
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                start_new_session=True,
                pass_fds=(fd,) if fd is not None else (),
                bufsize=0,
            )
        except OSError as error:
            raise BoxError(f"cannot start the box: {error}") from error
        finally:
            if fd is not None:
                os.close(fd)
        return self._process

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the command; False if it still runs after `seconds` (default: the rest of wall_s)."""
        process = self._process
        if process is None or process.poll() is not None:
            return True
        left = self.wall_left() if seconds is None else seconds
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:  # another thread has just reaped it
            return True
        try:
            if not select.select([handle], [], [], max(0.0, left))[0]:
                return False
        finally:
            os.close(handle)
        process.wait()
        self._ended = time.monotonic()
        return True

    def wall_left(self) -> float:
        """Seconds until the wall limit of the running command."""
        return self.limits.wall_s - (time.monotonic() - self._started)

    def run(self, command: Sequence[str]) -> BoxResult:
        """Run a command to its end or to a limit."""
        process = self.popen(command)
        assert process.stdout is not None and process.stderr is not None
        pumps = [Pump(pipe.fileno(), self.limits.output_bytes, lambda: self.kill("output")) for pipe in (process.stdout, process.stderr)]
        if not self.wait():
            self.kill("wall")
        self.kill()  # whatever the command left behind
        for pump in pumps:
            pump.join()
        process.stdout.close()
        process.stderr.close()
        return BoxResult(pumps[0].bytes(), pumps[1].bytes(), self.report())

    def kill(self, reason: str | None = None) -> None:
        """End every process of the box, whatever sessions, groups or parents they made. Idempotent.

        Raises BoxError if something survives five seconds of SIGKILL (a process stuck in the kernel).
        """
        with self._killing:
            self._kill(reason)

    def _kill(self, reason: str | None) -> None:
        process = self._process
        if reason is not None and self._stopped_by is None and process is not None and self._ended == 0.0:
            self._stopped_by = reason
        clean = True
        if process is not None and process.poll() is None:
            # our child's child is pid 1 of the box's pid namespace; when it is gone, all below it are
            inits = children_of(process.pid) if self.walls.has("namespaces") or self.walls.bwrap else []
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            clean = end_and_wait(inits)
        if self._cgroup is not None:
            clean = self._cgroup.kill() and clean
        if self._folder.uid is not None:
            clean = end_uid(self._folder.uid) and clean
        if process is not None:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                clean = False
            self._ended = self._ended or time.monotonic()
        if not clean:
            raise BoxError("a process of the box survives SIGKILL: it is stuck in the kernel; look at dmesg")

    def report(self) -> BoxReport:
        """How the last command ended, or stands; also after `close`."""
        if self._final is not None:
            return self._final
        code = self._process.poll() if self._process else None
        oom = self._cgroup.oom_kills() if self._cgroup else 0
        refused = self._cgroup.fork_refusals() if self._cgroup else 0
        number = -code if code is not None and code < 0 else code - 128 if code and code > 128 else None
        name = signal.Signals(number).name if number and number in set(signal.Signals) else None
        limit = self._stopped_by
        if limit is None:
            by_signal = {"SIGXCPU": "cpu", "SIGXFSZ": "file"}.get(name or "")
            limit = "memory" if oom else by_signal or ("processes" if refused else None)
        if code == _CANNOT_JOIN and not self.joined and self._cgroup is not None and not limit:
            raise BoxError("the box could not join its control groups")
        peak = self._cgroup.peak_bytes() if self._cgroup else None
        wall = (self._ended or time.monotonic()) - self._started
        return BoxReport(code, name, limit, oom, refused, peak, wall)

    def close(self) -> None:
        """Kill, then remove folder and groups. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self.kill()
            self._final = self.report()
        finally:
            process = self._process
            for pipe in (process.stdin, process.stdout, process.stderr) if process else ():
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._folder.close()
            if self._cgroup is not None:
                self._cgroup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_box(
    limits: Limits,
    walls: Walls,
    readonly: Sequence[tuple[Path, str]] = (),
    scratch: Path | None = None,
    environment: Mapping[str, str] | None = None,
    devices: Sequence[Path] = (),
) -> Box:
    """A new box; use it in a `with` statement. See Box for the parameters."""
    return Box(limits, walls, readonly, scratch, environment, devices)
