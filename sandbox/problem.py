"""Problems: a folder under experiments/problems/, loaded as a package of its own name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from sandbox.errors import ProblemError

PROBLEMS = Path(__file__).resolve().parent.parent / "experiments" / "problems"


def import_problem_module(folder: Path, module: str) -> ModuleType:
    """Import `<folder name>.<module>`; problem folders are trusted code of the checkout, never candidate code."""
    parent = str(folder.parent)
    if parent not in sys.path:
        sys.path.append(parent)
    return importlib.import_module(f"{folder.name}.{module}")


def problem_folder(name: str) -> Path:
    """Folder of a problem by name or path."""
    for folder in (PROBLEMS / name, Path(name)):
        if (folder / "problem.yaml").is_file():
            return folder.resolve()
    known = sorted(p.parent.name for p in PROBLEMS.glob("*/problem.yaml"))
    raise ProblemError(f"no problem '{name}' (no problem.yaml there); the checkout has {known}")


def load_settings(folder: Path) -> dict[str, Any]:
    """The problem.yaml of a folder."""
    return dict(yaml.safe_load((folder / "problem.yaml").read_text()))
