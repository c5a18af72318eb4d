"""Skill folders -> Implementations: reads skills/<name>/implementations.yaml and the sources it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sandbox.candidate import Implementation
from sandbox.errors import KernelbraidError

SKILLS = Path(__file__).resolve().parent.parent / "skills"


class SkillError(KernelbraidError):
    """A skill folder does not say what it must."""


def load_implementations(root: Path = SKILLS) -> list[Implementation]:
    """Every Implementation of every skill folder, in folder order, with default knobs. Two of one name are an error."""
    found: dict[str, Implementation] = {}
    for manifest in sorted(root.glob("*/implementations.yaml")):
        for entry in yaml.safe_load(manifest.read_text())["implementations"]:
            impl = _implementation(entry, manifest.parent, root)
            if impl.name in found:
                raise SkillError(f"{manifest}: a second implementation is named '{impl.name}'; rename one")
            found[impl.name] = impl
    return list(found.values())


def _implementation(entry: dict[str, Any], folder: Path, root: Path) -> Implementation:
    texts = []
    for source in entry["sources"]:
        path = (folder / source).resolve()
        if not path.is_relative_to(root.resolve()):
            raise SkillError(f"{folder.name}: source '{source}' lies outside the skills folder")
        if not path.is_file():
            raise SkillError(f"{folder.name}: no source '{source}'")
        texts.append(path.read_text().strip())
    return Implementation(
        name=entry["name"], kind=entry["kind"], target=entry["target"], source="\n\n".join(texts) + "\n",
        knobs={k: v["default"] for k, v in entry.get("knobs", {}).items()}, shardings=tuple(entry.get("shardings", ["*"])),
        numerics=entry.get("numerics", ""), drops=tuple(entry.get("drops", ())), oracle=bool(entry.get("oracle", False)), author=f"skill:{folder.name}",
    )  # fmt: skip


def choose(implementations: list[Implementation], kind: str, target: str, *, oracle: bool = False) -> Implementation:
    """The first implementation of a kind for a target: the scalar oracle, or a fast one."""
    fits = [m for m in implementations if m.kind == kind and m.target == target]
    for m in fits:
        if m.oracle == oracle:
            return m
    if fits and not oracle:
        return fits[0]
    raise SkillError(
        f"no {'oracle' if oracle else 'implementation'} of kind '{kind}' for {target}; the skills have {[m.name for m in fits]}"
    )
