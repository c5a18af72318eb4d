"""How far apart the judge and the agents are, and how an agent is started on its side of the wall.

`server_identity` reads owners and modes of what a verdict rests on, as the kernel would for that uid, and says `apart` or
`unwalled` with the first reason. It knows nothing of sudo, capabilities or containers that an agent may reach: `run_as_agent`
starts agents without any of them.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandbox.enclosure import PATH
from sandbox.errors import KernelbraidError, UnavailableError
from sandbox.records import Frozen
from sandbox.scratch import _FIRST_UID, _UIDS

_CODE = Path(__file__).resolve().parent
_ACL = "system.posix_acl_access"
SOCKET_VARIABLE = "KERNELBRAID_JUDGE"  # an agent's environment holds the path of the judge's socket here, and nothing else of ours


class Separation(Frozen):
    """`apart`: this client can neither change records, caches and code of the judge nor read its weights. Else why not."""

    kind: Literal["apart", "unwalled"]
    reason: str = ""


@dataclass(frozen=True)
class Places:
    """What belongs to the judge alone: none may be changed by an agent, `secret` and all below it not even read."""

    store: Path
    cache: Path
    sockets: Path  # the folder of the socket
    problems: tuple[Path, ...] = ()  # folders of problems: their code is the judge's

    @property
    def secret(self) -> tuple[Path, ...]:
        """Weights. Seeds of cases still to come lie in no file."""
        return (self.cache / "weights",)


@dataclass(frozen=True)
class Who:
    """A user as the kernel sees it when files are opened."""

    uid: int
    groups: frozenset[int]

    @classmethod
    def of(cls, uid: int) -> Who:
        """A uid with the groups that the system's user list gives it; one that is not listed has its own number as group."""
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return cls(uid, frozenset({uid}))
        return cls(uid, frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid)))

    def may(self, bit: int, path: Path) -> bool:
        """Whether one of the rights r (4), w (2), x (1) of a path itself is this user's. Its owner can always give it to himself.

        Raises OSError if it cannot be looked at."""
        status = path.stat()
        if status.st_uid == self.uid:
            return True
        mode = stat.S_IMODE(status.st_mode)
        if mode >> 3 & bit and (status.st_gid in self.groups or _has_acl(path)):  # with an ACL these bits are the most that it gives
            return True
        return bool(mode & bit) and status.st_gid not in self.groups


def _has_acl(path: Path) -> bool:
    try:
        return _ACL in os.listxattr(path)
    except OSError:
        return False


def _changeable(who: Who, path: Path) -> Path | None:
    """The path, or the folder above it, through which a user could change or replace it; None if there is none."""
    if who.may(2, path):
        return path
    below = path
    for folder in path.parents:
        # who may write into a folder may put something else in the place of what is there, unless it is sticky and not his
        sticky = folder.stat().st_mode & stat.S_ISVTX and below.stat().st_uid != who.uid and folder.stat().st_uid != who.uid
        if who.may(2, folder) and not sticky:
            return folder
        below = folder
    return None


def _reachable(who: Who, path: Path) -> bool:
    return all(who.may(1, folder) for folder in path.parents)


def _everything(folder: Path) -> Iterator[Path]:
    """A folder and all below it; links are followed no further than to themselves."""
    yield folder
    for at, folders, files in os.walk(folder):
        yield from (Path(at) / name for name in (*folders, *files) if not (Path(at) / name).is_symlink())


def server_identity(who: Who, places: Places) -> Separation:
    """How far this user is apart from the judge that this process is. Whatever cannot be looked at counts as no wall."""
    own = os.geteuid()
    if who.uid == own:
        return Separation(kind="unwalled", reason=f"agent and judge are the same user (uid {own}); start agents under another uid")
    if who.uid == 0:
        return Separation(kind="unwalled", reason="the agent is root, whom no file mode stops; start agents under another uid")
    try:
        return _by_modes(who, places)
    except OSError as error:
        return Separation(kind="unwalled", reason=f"{error.filename} cannot be looked at: {error.strerror}")


def _by_modes(who: Who, places: Places) -> Separation:
    named = {"store": places.store, "cache": places.cache, "folder of the socket": places.sockets, "code": _CODE}
    for what, path in (*named.items(), *(("problem", folder) for folder in places.problems), ("Python", Path(sys.prefix))):
        hole = _changeable(who, path.resolve())
        if hole is not None:
            return Separation(kind="unwalled", reason=f"uid {who.uid} may write {hole}, and so change the {what} of the judge")
    for folder in (places.store, places.cache, _CODE, *places.problems):
        for path in _everything(folder):
            if path.lstat().st_uid == who.uid or (who.may(2, path) and _reachable(who, path)):
                return Separation(kind="unwalled", reason=f"uid {who.uid} may write {path}, which is the judge's")
    for folder in places.secret:
        for path in _everything(folder) if folder.exists() else ():
            if path.is_file() and who.may(4, path) and _reachable(who, path):
                return Separation(kind="unwalled", reason=f"uid {who.uid} may read {path}, which holds secret weights")
    return Separation(kind="apart")


def is_box_uid(uid: int) -> bool:
    """Whether a uid is one of those that boxes take: every process of such a one is ended with its box."""
    return _FIRST_UID <= uid < _FIRST_UID + _UIDS


@dataclass(frozen=True)
class Agent:
    """A started agent: end it with `process.kill()`; its folder stays."""

    process: subprocess.Popen[bytes]
    walled: bool
    reason: str = ""


def run_as_agent(command: Sequence[str], uid: int, folder: Path, socket: Path, *, say: Callable[[str], None],
                 stdout: int | None = None, stderr: int | None = None) -> Agent:  # fmt: skip
    """Start an agent's command: under `uid`, without any way back to rights, in `folder` as its HOME, seeing only the socket's path.

    The folder is made if absent and is the agent's own. Where we are not root the command runs as we do, and that is said. Raises
    KernelbraidError if the uid or the folder will not do.
    """
    if uid == 0 or is_box_uid(uid):
        raise KernelbraidError(f"uid {uid} is {'root' if uid == 0 else 'one that boxes take'}: choose another for an agent")
    argv, walled, reason = list(command), os.geteuid() == 0, ""
    made = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()
    if walled:
        who = Who.of(uid)
        _hand_over(folder, who, made)
        argv = ["/usr/bin/setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--bounding-set=-all",
                "--inh-caps=-all", "--", *argv]  # fmt: skip
    else:
        reason = f"only root can start an agent under uid {uid}, so it runs as uid {os.geteuid()}, who owns the judge's files"
        say(f"unwalled: {reason}")
    variables = {"PATH": PATH, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8", SOCKET_VARIABLE: str(socket)}
    try:
        process = subprocess.Popen(
            argv, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
    except OSError as error:
        raise UnavailableError(f"cannot start the agent's command {argv[0]}: {error.strerror}") from error
    return Agent(process, walled, reason)


def _hand_over(folder: Path, who: Who, made: bool) -> None:
    """Make an agent's folder its own. Raises KernelbraidError."""
    owner = folder.stat().st_uid
    if owner not in (who.uid, os.geteuid()) or (owner == os.geteuid() and not made and any(folder.iterdir())):
        raise KernelbraidError(f"{folder} belongs to uid {owner} and is not empty or not ours to give: name an empty or new folder")
    os.chown(folder, who.uid, who.uid, follow_symlinks=False)
    folder.chmod(0o700)
    if not _reachable(Who(who.uid, frozenset({who.uid})), folder):
        raise KernelbraidError(f"uid {who.uid} cannot pass through the folders above {folder}: name another place")
