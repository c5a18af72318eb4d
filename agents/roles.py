"""Specialists as data: one YAML file each in agents/roles/. Adding one is adding a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from sandbox.errors import KernelbraidError
from sandbox.records import Frozen

ROLES = Path(__file__).resolve().parent / "roles"


class RoleError(KernelbraidError):
    """A role file does not say what it must."""


class Role(Frozen):
    """What a specialist is for. `plans`: it proposes rewrites of the plan, too."""

    name: str
    about: str
    kinds: tuple[str, ...]
    plans: bool = False
    skills: tuple[str, ...] = ()


def load_roles(names: Sequence[str] = (), folder: Path = ROLES) -> list[Role]:
    """The named roles, or all, by file name. Raises RoleError for what is no role, and for a kind that two roles claim."""
    roles: dict[str, Role] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            role = Role.model_validate(yaml.safe_load(path.read_text()))
        except (ValidationError, yaml.YAMLError) as error:
            raise RoleError(f"{path} is no role: {error}") from error
        if role.name != path.stem:
            raise RoleError(f"{path} calls itself '{role.name}': name the file after the role")
        roles[role.name] = role
    unknown = set(names) - set(roles)
    if unknown:
        raise RoleError(f"no specialist {sorted(unknown)}; there are {sorted(roles)}")
    chosen = [roles[n] for n in (names or sorted(roles))]
    claimed: dict[str, str] = {}
    for role in chosen:
        for kind in role.kinds:
            if kind in claimed:
                raise RoleError(f"kind '{kind}' is claimed by '{claimed[kind]}' and by '{role.name}': leave it to one of them")
            claimed[kind] = role.name
    return chosen
