"""Private folders for boxes, and the janitor that removes what dead owners left behind.

Layout:  <root>/.lock   <root>/uids/<n>   <root>/box-<hex>/{in/, box/, groups}
A box folder is alive while somebody holds a flock on it. The kernel drops the lock when the owner dies, however
it dies, so no pid is ever guessed and no live folder is ever removed.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sandbox.box_errors import BoxError
from sandbox.cgroups import PREFIX, kill_members, remove_group

_MEMORY_DISK = Path("/dev/shm")
_FIRST_UID, _UIDS = 64100, 64


def default_root(in_memory: bool) -> Path:
    """The folder for boxes of this user. In memory its pages count against the box's own memory limit."""
    base = Path(tempfile.gettempdir())
    if in_memory and os.access(_MEMORY_DISK, os.W_OK):
        space = os.statvfs(_MEMORY_DISK)
        if space.f_bavail * space.f_frsize >= 1 << 30:
            base = _MEMORY_DISK
    return base / f"kernelbraid-boxes-{os.geteuid()}"


def _prepare_root(root: Path) -> None:
    try:
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise BoxError(f"cannot make the folder for boxes {root}: {error}; free some space or set it") from error
    if not root.is_dir() or root.is_symlink() or status.st_uid != os.geteuid():
        raise BoxError(f"{root} is not a folder of this user; remove it, or pass another scratch folder")


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Held only while folders are made or removed, so a new folder is never seen without its own lock."""
    fd = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _try_lock(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """A file descriptor that holds the lock, or None if somebody else does."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove_tree(path: Path) -> None:
    """Remove a folder that a hostile program has filled; links are never followed."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # modes without rights, or nesting deeper than Python likes
        subprocess.run(["/bin/chmod", "-R", "u+rwx", str(path)], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["/bin/rm", "-rf", "--one-file-system", str(path)], stderr=subprocess.DEVNULL, check=False)


def sweep(root: Path) -> int:
    """Remove the folders and groups of dead owners below root; the number removed. Call with `_locked`."""
    removed = 0
    for path in root.glob("box-*"):
        fd = _try_lock(path, os.O_RDONLY | os.O_DIRECTORY)
        if fd is None:
            continue
        try:
            groups = path / "groups"
            for line in groups.read_text().splitlines() if groups.is_file() else []:
                group = Path(line)
                if group.name == PREFIX + path.name:
                    kill_members(group)
                    _remove_tree(path)
                    remove_group(group)
            _remove_tree(path)
            removed += 1
        finally:
            os.close(fd)
    return removed


class PrivateFolder:
    """One box's folder: `inbox` (the parent writes, the box reads) and `scratch` (the box writes)."""

    def __init__(self, root: Path, need_uid: bool) -> None:
        """root is created if absent. need_uid also reserves an unprivileged uid for this box alone."""
        _prepare_root(root)
        self._uid_fd: int | None = None
        self.uid: int | None = None
        with _locked(root):
            sweep(root)
            self.path = root / f"box-{uuid.uuid4().hex[:16]}"
            self.path.mkdir(mode=0o700)
            fd = _try_lock(self.path, os.O_RDONLY | os.O_DIRECTORY)
        if fd is None:
            raise BoxError(f"cannot lock the new folder {self.path}; is the file system without flock?")
        self._fd: int | None = fd
        self.inbox, self.scratch = self.path / "in", self.path / "box"
        self.inbox.mkdir()
        self.inbox.chmod(0o755)
        self.scratch.mkdir(mode=0o700)
        if need_uid:
            self._take_uid(root)

    def _take_uid(self, root: Path) -> None:
        (root / "uids").mkdir(mode=0o700, exist_ok=True)
        # In any order: the dead of the uid's last box count against its process limit until somebody reaps them.
        for number in random.sample(range(_FIRST_UID, _FIRST_UID + _UIDS), _UIDS):
            fd = _try_lock(root / "uids" / str(number), os.O_RDWR | os.O_CREAT)
            if fd is not None:
                self._uid_fd, self.uid = fd, number
                # the box must pass through our folder; only its own part is writable
                self.path.chmod(0o711)
                os.chown(self.scratch, number, number)
                return
        self.close()
        raise BoxError(f"all {_UIDS} uids for boxes are in use; close some boxes")

    def note_groups(self, folders: Sequence[Path]) -> None:
        """Write down the control groups, for the janitor of a later process."""
        (self.path / "groups").write_text("".join(f"{folder}\n" for folder in folders))

    def close(self) -> None:
        """Remove the folder. Safe to call twice."""
        if self._fd is not None:
            _remove_tree(self.path)
            os.close(self._fd)
            self._fd = None
        if self._uid_fd is not None:
            os.close(self._uid_fd)
            self._uid_fd = None
