"""The proposer that replays a file: for tests, demonstrations and dry runs.

A script is YAML: a list of entries, each for one specialist.

    - {specialist: dequant, slot: qkvg, implementation: w4a16-gemv/digits, knobs: {LEVELS: 2}}
    - {specialist: barrier_fusion, rewrites: [{kind: join, section: kda, subject: conv}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from agents.brief import Brief, Proposal
from agents.skills import Offer
from memory.change import Change, Choice, Rewrite
from sandbox.errors import KernelbraidError
from sandbox.records import Frozen


class ScriptError(KernelbraidError):
    """A script does not say what it must."""


class Entry(Frozen):
    """One line of a script."""

    specialist: str
    slot: str = ""
    implementation: str = ""
    knobs: dict[str, int] = {}
    rewrites: tuple[Rewrite, ...] = ()


def read_script(path: Path) -> list[Entry]:
    """The entries of a file. Raises ScriptError with the entry that is wrong."""
    try:
        entries = yaml.safe_load(path.read_text())
        if not isinstance(entries, list):
            raise ScriptError(f"{path} must be a list of entries")
        return [Entry.model_validate(e) for e in entries]
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise ScriptError(f"{path} is no script: {error}") from error


class Script:
    """What one specialist finds in a script, in its order."""

    def __init__(self, path: Path, specialist: str) -> None:
        entries = [e for e in read_script(path) if e.specialist == specialist]
        self.stages = [e for e in entries if not e.rewrites]
        self.plans = [e for e in entries if e.rewrites]

    def ask(self, brief: Brief, offers: Sequence[Offer]) -> list[Proposal]:
        """The next proposals for stages."""
        known = {o.implementation.name: o for o in offers}
        out: list[Proposal] = []
        while self.stages and len(out) < brief.want:
            entry = self.stages.pop(0)
            if entry.implementation not in known:
                raise ScriptError(f"the script names implementation '{entry.implementation}'; the skills have {sorted(known)}")
            chosen = known[entry.implementation].with_knobs(**entry.knobs)
            out.append(Proposal(specialist=brief.specialist, proposer="script", slot=entry.slot, why="the script says so",
                                change=Change(choices={entry.slot: Choice.of(chosen)})))  # fmt: skip
        return out

    def ask_plans(self, brief: Brief) -> list[Proposal]:
        """The next rewritten plans."""
        taken, self.plans = self.plans[: brief.want], self.plans[brief.want :]
        return [Proposal(specialist=brief.specialist, proposer="script", change=Change(rewrites=e.rewrites), why="the script says so")
                for e in taken]  # fmt: skip
