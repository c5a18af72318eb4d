"""Which Python runs in a box, and what must be shown to it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sandbox.walls import Level, Walls


def python_command(walls: Walls, *, packages: bool = False) -> tuple[str, list[tuple[Path, str]]]:
    """(interpreter in the box, what to bind for it). With packages, the virtual environment comes along."""
    base = Path(sys.base_prefix).resolve()
    own = Path(sys.executable) if packages else Path(getattr(sys, "_base_executable", sys.executable))
    folders = [base]
    if packages:
        folders.append(Path(sys.prefix))
        # packages of another environment that a .pth file or --user brought in
        for entry in map(Path, sys.path):
            if entry.name in ("site-packages", "dist-packages") and entry.is_dir() and not any(entry.is_relative_to(f) for f in folders):
                folders.append(entry)
    # an own uid cannot pass through a private home
    by_uid = walls.level is Level.UID or (walls.level is Level.BWRAP and walls.has("unprivileged-uid"))
    if by_uid and not packages and not open_to_all(base) and os.access("/usr/bin/python3", os.X_OK):
        return "/usr/bin/python3", []
    return str(own), [(f, str(f)) for f in folders if not str(f).startswith("/usr/") and str(f) != "/usr"]


def open_to_all(path: Path, *, parents: bool = True) -> bool:
    """Whether any user can read the path itself and (with parents) reach it."""
    mode = path.stat().st_mode
    if not mode & 0o004 or (path.is_dir() and not mode & 0o001):
        return False
    return not parents or all(folder.stat().st_mode & 0o001 for folder in path.parents)
