"""What a proposal changes: the vocabulary that tricks, proposals and plans share.

A *slot* is a stage by its name without the layer (`qkvg`, `o_proj`, `up`): every layer's stage of that name gets the same
Implementation. A Rewrite changes where a plan runs things, never what is computed (docs/contract.md, section 3).
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from sandbox.candidate import Implementation
from sandbox.errors import RecordError
from sandbox.records import Frozen, content_hash

RewriteKind = Literal["join", "split_phase", "move", "split", "place", "flag", "unflag"]


class Choice(Frozen):
    """An Implementation with its knobs set; `id` is its content hash, so that a later source of that name shows."""

    implementation: str
    knobs: dict[str, int] = {}
    id: str

    @classmethod
    def of(cls, implementation: Implementation) -> Choice:
        """The choice that names an implementation."""
        return cls(implementation=implementation.name, knobs=implementation.knobs, id=implementation.id)

    def __str__(self) -> str:
        knobs = ",".join(f"{k}={v}" for k, v in sorted(self.knobs.items()))
        return f"{self.implementation}{{{knobs}}}" if knobs else self.implementation


class Rewrite(Frozen):
    """One step in the space of plans, for every layer of a section (kda, mla, moe, end).

    join: phase `subject` and the one after it become one. split_phase: phase `subject` ends before stage `to`.
    move: stage `subject` goes into phase `to`. split: stage `subject` uses sharding `to`. place: stage `subject` is placed
    `to` (replicated, contiguous, round_robin, block 0). flag: tensor `subject` is handed over by a flag inside its phase
    instead of a barrier; unflag takes that back."""

    kind: RewriteKind
    section: str
    subject: str
    to: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.section}/{self.subject}" + (f" -> {self.to}" if self.to else "")


class Change(Frozen):
    """What a proposal does to an incumbent: other Implementations in some slots, or a rewritten plan, or both."""

    choices: dict[str, Choice] = {}
    rewrites: tuple[Rewrite, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Change:
        if not self.choices and not self.rewrites:
            raise RecordError("a change needs a choice or a rewrite; to propose nothing, propose nothing")
        return self

    @property
    def id(self) -> str:
        """Hash of the content."""
        return content_hash(self)

    def __str__(self) -> str:
        parts = [f"{slot}: {choice}" for slot, choice in sorted(self.choices.items())] + [str(r) for r in self.rewrites]
        return "; ".join(parts)
