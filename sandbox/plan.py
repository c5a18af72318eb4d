"""A Plan: how a StageGraph runs in one launch (docs/contract.md, section 3).

This is the expanded form that the checker enumerates and the assembler emits; plan files are shorter and are expanded
by agents/planner.py. Blocks are 0 .. blocks-1: worker threads on a CPU, thread blocks on a GPU.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from sandbox.errors import RecordError
from sandbox.records import Frozen, content_hash

SyncKind = Literal["same_block", "tag", "flag", "barrier"]


class Buffer(Frozen):
    """Where an edge tensor lives.

    `shared`: one array all blocks see; `private`: one copy per block, seen by that block only; `partial`: `copies`
    arrays that items add into, copy of block b = `copy_of[b]`, read as the sum of all copies.
    `storage` names the memory: tensors with one storage name reuse the same bytes."""

    tensor: str
    home: Literal["shared", "private", "partial"]
    storage: str
    copies: int = 1
    copy_of: tuple[int, ...] = ()


class Wait(Frozen):
    """Before its first item of the step a block waits until `count` signals of `event` came in this launch."""

    event: str
    count: int


class Step(Frozen):
    """One stage inside a phase. `owner[i]` is the block that runs item i; `replicated`: every block runs every item
    (into private buffers; a state or step output is then written by block `writer` alone)."""

    node: str
    sharding: str
    owner: tuple[int, ...] = ()
    replicated: bool = False
    writer: int = 0
    waits: tuple[Wait, ...] = ()
    signals: tuple[str, ...] = ()  # each block that runs an item of the step signals once, after its last item


class Phase(Frozen):
    """Steps that run without a grid barrier between them, in this order in every block."""

    name: str
    steps: tuple[Step, ...]
    zero: tuple[str, ...] = ()  # partial tensors whose copies are zeroed at the start, each by the lowest block mapped to it
    barrier: bool = True  # a grid barrier ends the phase


class EdgeSync(Frozen):
    """What orders one edge of the graph, said by the planner and verified by the checker."""

    producer: str
    consumer: str
    tensor: str
    kind: SyncKind


class Plan(Frozen):
    """A StageGraph placed on a mesh of blocks."""

    name: str
    graph: str
    target: Literal["cpu", "cuda"]
    blocks: int = Field(gt=0)
    phases: tuple[Phase, ...]
    buffers: dict[str, Buffer]
    edges: tuple[EdgeSync, ...]
    arrivals: int = 0  # arrivals each barrier counts; 0 means all blocks
    dropped_roundings: tuple[str, ...] = ()  # rounding points of the reference that this plan's stages skip, with the measured error

    @model_validator(mode="after")
    def _check(self) -> Plan:
        for phase in self.phases:
            for step in phase.steps:
                if step.replicated == bool(step.owner):
                    raise RecordError(f"{phase.name}/{step.node}: give either owners or replicated")
        return self

    @property
    def id(self) -> str:
        """Hash of everything but the name."""
        return content_hash(self.model_dump(mode="json", exclude={"name"}))

    def steps(self) -> list[tuple[int, Step]]:
        """(phase index, step) in order."""
        return [(p, s) for p, phase in enumerate(self.phases) for s in phase.steps]

    @property
    def all_to_alls(self) -> int:
        """Grid-wide dependencies inside the launch: every barrier but one that ends the launch, and every event that all
        blocks wait for. The end of the launch orders the rest."""
        waiting: dict[str, set[int]] = {}
        for _, step in self.steps():
            for wait in step.waits:
                waiting.setdefault(wait.event, set()).update(range(self.blocks) if step.replicated else step.owner)
        return sum(p.barrier for p in self.phases[:-1]) + sum(len(blocks) == self.blocks for blocks in waiting.values())
