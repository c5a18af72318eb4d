"""The formal model of a Plan, by enumeration: items, cells, positions in each block's program, happens-before.

Nothing here is taken from what the planner claims: owners, boxes and buffers give the accesses, waits, signals and barriers
give the order. Every block runs the same program, so time is one number line of *positions*: per phase its zeroing, its
steps, its barrier. A block takes part in a step iff it owns an item of it. An access is (block, position, copy, [lo, hi)).

Happens-before from (c, q) to (b, p) holds iff one of these does:
- program order: c == b and q < p (items of one step are not ordered among each other: a stage may touch them in any order);
- a grid barrier stands between q and p;
- `knows(p)[b, c] >= q`: a vector clock over the blocks that grows at waits only, by all that the signalling blocks had done
  or knew when they signalled. It needs no barriers inside: whoever waits has passed every barrier the signaller passed.
Launch to launch everything is ordered (a dispatch joins all blocks), and so no access here looks across launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sandbox.graph import Node, PortBox, Sharding, StageGraph, TensorDecl
from sandbox.plan import Buffer, Plan, Step

Ints = NDArray[np.int64]
ALL_COPIES = -1


@dataclass(frozen=True)
class Violation:
    """One broken rule of docs/contract.md section 4 (a..i); the message names phase, step, item, block and buffer interval."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"({self.rule}) {self.message}"


@dataclass(frozen=True)
class Machine:
    """Limits of the machine a plan must fit (rule h). 0 bytes: not limited."""

    blocks: int  # blocks that run at the same time: cores of a CPU, co-resident thread blocks of a GPU
    private_bytes: int = 0  # per block: its private buffers and the largest scratch of a step
    workspace_bytes: int = 0  # shared and partial buffers together


@dataclass(frozen=True)
class Run:
    """One step of the plan at its position. `owner` (items,) is meaningless if replicated: then every block runs all items."""

    pos: int
    phase: str
    step: Step
    node: Node
    sharding: Sharding
    owner: Ints
    blocks: Ints  # that run at least one item, ascending

    @property
    def where(self) -> str:
        """For messages."""
        return f"phase {self.phase}, step {self.node.name}"


@dataclass(frozen=True)
class Accesses:
    """What the items of one step (or one zeroing) do to one tensor; arrays of one length, elements of the tensor."""

    tensor: str
    pos: int
    where: str
    verb: str  # reads, writes, adds to, zeroes
    item: Ints
    block: Ints
    copy: Ints  # ALL_COPIES: every copy (a partial tensor is read as their sum)
    lo: Ints
    hi: Ints

    def only(self, mask: NDArray[np.bool_]) -> Accesses:
        """The entries under a mask."""
        parts = {f: getattr(self, f)[mask] for f in ("item", "block", "copy", "lo", "hi")}
        return replace(self, **parts)

    def anywhere(self) -> Accesses:
        """The same accesses of which only the block is known: they meet every other such."""
        zero: Ints = np.zeros_like(self.lo)
        return replace(self, copy=zero, lo=zero, hi=zero + 1)

    def describe(self, k: int) -> str:
        """Entry k in words."""
        copy = f" copy {self.copy[k]}" if self.copy[k] > 0 else ""
        item = f", item {self.item[k]}" if self.verb != "zeroes" else ""
        return f"{self.where}{item} (block {self.block[k]}) {self.verb} {self.tensor}[{self.lo[k]}:{self.hi[k]}){copy}"


def spans(box: PortBox, items: int, decl: TensorDecl, filled: int | None) -> tuple[Ints, Ints, Ints]:
    """(item, lo, hi) of every interval that items 0 .. items-1 see of a tensor through a port.

    `filled`: rows in a cache before this launch's append; None if the tensor's extent does not depend on it."""
    index: Ints = np.arange(items, dtype=np.int64)
    row = decl.size // decl.shape[0]
    if box.mode == "append":
        base = (filled or 0) * row
        lo = base + index * box.size
        return index, lo, lo + (box.size or row)
    end = decl.size if filled is None else filled * row
    if box.size == 0:
        return index, np.zeros(items, dtype=np.int64), np.full(items, end, dtype=np.int64)
    lo = index * box.size
    if box.rows > 1:
        lo = (lo[:, None] + np.arange(box.rows, dtype=np.int64) * box.stride).ravel()
        index = np.repeat(index, box.rows)
    hi = lo + box.size
    return (index, lo, hi) if filled is None else (index, np.minimum(lo, end), np.minimum(hi, end))


class Model:
    """A structurally sound plan, laid out. Build it after `legality.structure` found nothing."""

    def __init__(self, plan: Plan, graph: StageGraph) -> None:
        self.plan, self.graph, self.blocks = plan, graph, plan.blocks
        self.everyone: Ints = np.arange(plan.blocks, dtype=np.int64)
        self.runs: list[Run] = []
        self.zeroings: dict[str, list[tuple[int, str]]] = {}  # tensor -> (position, phase)
        self.barriers: list[int] = []
        pos = 0
        for phase in plan.phases:
            for tensor in phase.zero:
                self.zeroings.setdefault(tensor, []).append((pos, phase.name))
            for step in phase.steps:
                pos += 1
                node = graph.by_name[step.node]
                owner = np.array(step.owner, dtype=np.int64)
                blocks = self.everyone if step.replicated else np.array(sorted(set(step.owner)), dtype=np.int64)
                self.runs.append(Run(pos, phase.name, step, node, node.shardings[step.sharding], owner, blocks))
            pos += 1
            if phase.barrier:
                self.barriers.append(pos)
            pos += 1
        self.end = pos
        self.by_node = {r.node.name: r for r in self.runs}
        self.uses: dict[str, list[tuple[Run, str, str]]] = {t: [] for t in graph.tensors}  # tensor -> (step, port, mode)
        for run in self.runs:
            for port, tensor in run.node.ports.items():
                self.uses[tensor].append((run, port, run.sharding.boxes[port].mode))
        # Greatest barrier position below each position; -1 before the first.
        marks = np.full(self.end + 1, -1, dtype=np.int64)
        marks[[b + 1 for b in self.barriers]] = self.barriers
        self.last_barrier: list[int] = np.maximum.accumulate(marks).tolist()

    # ---- cells -------------------------------------------------------------------------------------------------

    def home(self, tensor: str) -> str:
        """Where a tensor lives; inputs, outputs and states are arrays that all blocks see."""
        buffer = self.plan.buffers.get(tensor)
        return buffer.home if buffer else "shared"

    def accesses(self, run: Run, port: str, filled: int | None = None, verb: str = "") -> Accesses:
        """The accesses of a step through one port. A replicated step runs every item in every block; of a state or step
        output it writes only what block `writer` writes."""
        tensor = run.node.ports[port]
        box, decl = run.sharding.boxes[port], self.graph.tensors[tensor]
        buffer = self.plan.buffers.get(tensor)
        count = 1 if box.size == 0 and box.mode == "read" and run.step.replicated else run.sharding.items
        item, lo, hi = spans(box, count, decl, filled)
        verb = verb or {"read": "reads", "add": "adds to"}.get(box.mode, "writes")
        if not run.step.replicated:
            block = run.owner[item]
        elif verb != "reads" and buffer is None:
            block = np.full(len(item), run.step.writer, dtype=np.int64)
        else:
            n = len(item)
            block = np.repeat(self.everyone, n)
            item, lo, hi = np.tile(item, self.blocks), np.tile(lo, self.blocks), np.tile(hi, self.blocks)
        return Accesses(tensor, run.pos, run.where, verb, item, block, self._copy(buffer, block, verb), lo, hi)

    def _copy(self, buffer: Buffer | None, block: Ints, verb: str) -> Ints:
        if buffer is None or buffer.home == "shared":
            return np.zeros(len(block), dtype=np.int64)
        if buffer.home == "private":
            return block
        if verb == "reads":
            return np.full(len(block), ALL_COPIES, dtype=np.int64)
        return np.array(buffer.copy_of, dtype=np.int64)[block]

    def zero_accesses(self, tensor: str, pos: int, phase: str) -> Accesses:
        """Zeroing of every mapped copy of a partial tensor, each by the lowest block mapped to it."""
        lowest: dict[int, int] = {}
        for b, k in enumerate(self.plan.buffers[tensor].copy_of):
            lowest.setdefault(k, b)
        copy: Ints = np.array(list(lowest), dtype=np.int64)
        block: Ints = np.array(list(lowest.values()), dtype=np.int64)
        lo: Ints = np.zeros(len(copy), dtype=np.int64)
        return Accesses(tensor, pos, f"phase {phase}", "zeroes", lo, block, copy, lo, lo + self.graph.tensors[tensor].size)

    def all_accesses(self, tensor: str) -> list[Accesses]:
        """Every access to an edge tensor: zeroings, its producer, its readers."""
        out = [self.zero_accesses(tensor, pos, phase) for pos, phase in self.zeroings.get(tensor, ())]
        return out + [self.accesses(run, port) for run, port, _ in self.uses[tensor]]

    # ---- order -------------------------------------------------------------------------------------------------

    def barrier_between(self, first: int, second: int) -> bool:
        """Whether a grid barrier separates two positions."""
        return self.last_barrier[second] > first

    def knows(self, pos: int) -> Ints | None:
        """Clock [block, block] at the first item of the step at `pos`; None if no wait came before it."""
        clock = None
        for at, snapshot in self.schedule[0]:
            if at > pos:
                break
            clock = snapshot
        return clock

    def unordered(
        self, first: Accesses, second: Accesses, *, own_item: bool = False, bytes_per: tuple[int, int] = (1, 1)
    ) -> tuple[int, int] | None:
        """Entries of a pair that touches a common cell and is not ordered first -> second, or None.

        `own_item`: an item is ordered with itself (it reads its box, then changes it). `bytes_per`: bytes of an element of
        each, for tensors of different dtypes in one storage."""
        if self.barrier_between(first.pos, second.pos) or not len(first.lo) or not len(second.lo):
            return None
        meet = self._meet(first, second, bytes_per)
        same = first.block[:, None] == second.block
        if first.pos < second.pos:
            meet &= ~same
        elif own_item and first.pos == second.pos:
            meet &= ~(same & (first.item[:, None] == second.item))
        if not meet.any():
            return None
        clock = self.knows(second.pos)
        if clock is not None:
            meet &= clock[second.block[None, :], first.block[:, None]] < first.pos
        where = np.argwhere(meet)
        return (int(where[0][0]), int(where[0][1])) if len(where) else None

    def _meet(self, first: Accesses, second: Accesses, bytes_per: tuple[int, int] = (1, 1)) -> NDArray[np.bool_]:
        p, q = bytes_per
        meet = (first.lo[:, None] * p < second.hi * q) & (second.lo * q < first.hi[:, None] * p)
        copy, other = first.copy[:, None], second.copy
        meet &= (copy == other) | (copy == ALL_COPIES) | (other == ALL_COPIES)
        return meet

    def crossings(self, first: Accesses, second: Accesses) -> tuple[bool, bool, bool]:
        """What joins writers and readers of an edge: (some pair is in two blocks, every pair is ordered by program order or
        events alone, some pair is ordered by events)."""
        meet = self._meet(first, second)
        same = (first.block[:, None] == second.block) & (first.pos < second.pos)
        clock = self.knows(second.pos)
        flagged = np.zeros_like(meet) if clock is None else clock[second.block[None, :], first.block[:, None]] >= first.pos
        return bool((meet & ~same).any()), not (meet & ~same & ~flagged).any(), bool((meet & flagged).any())

    @cached_property
    def signals(self) -> dict[str, int]:
        """Event -> signals that come in one launch."""
        out: dict[str, int] = {}
        for run in self.runs:
            for event in run.step.signals:
                out[event] = out.get(event, 0) + len(run.blocks)
        return out

    @cached_property
    def schedule(self) -> tuple[list[tuple[int, Ints]], list[str]]:
        """(clocks by position, blocks that are stuck in words). Waits and barriers only ever wait for more to have happened,
        so one greedy run decides: if it gets stuck, every run does."""
        if not any(r.step.waits for r in self.runs):
            return [], []
        programs = self._programs()
        clock = np.full((self.blocks, self.blocks), -1, dtype=np.int64)
        heard: dict[str, tuple[int, Ints]] = {}
        rows: list[tuple[int, int, Ints]] = []
        at, arrived = [0] * self.blocks, 0
        moved = True
        while moved:
            moved = False
            for b, program in enumerate(programs):
                while at[b] < len(program):
                    pos, kind, name = program[at[b]]
                    if kind in ("wait", "idle wait"):
                        have, all_clock = heard.get(name, (0, clock[b]))
                        if have < self.signals.get(name, 1):
                            break
                    if kind == "wait":
                        clock[b] = np.maximum(clock[b], all_clock)
                        rows.append((pos, b, clock[b].copy()))
                    elif kind == "signal":
                        mine = clock[b].copy()
                        mine[b] = pos
                        have, all_clock = heard.get(name, (0, mine))
                        heard[name] = (have + 1, np.maximum(all_clock, mine))
                    elif kind != "idle wait":
                        if kind == "barrier":
                            arrived += 1
                            program[at[b]] = (pos, "arrived", name)
                        break
                    at[b] += 1
                    moved = True
            if arrived == self.blocks:
                arrived, moved = 0, True
                at = [a + 1 for a in at]
        stuck = [f"block {b} at {p[at[b]][2]}" for b, p in enumerate(programs) if at[b] < len(p)]
        return self._clocks(rows), stuck

    def _programs(self) -> list[list[tuple[int, str, str]]]:
        """Waits, signals and barriers of each block, in its order. A block without items in a step need not wait, but may: it
        must not hang if it does, and nothing is concluded from it."""
        everyone = range(self.blocks)
        syncs: list[tuple[int, Sequence[int], str, str]] = [(p, everyone, "barrier", "a grid barrier") for p in self.barriers]
        for run in self.runs:
            members = run.blocks.tolist()
            idle = np.setdiff1d(self.everyone, run.blocks).tolist() if run.step.waits else []
            syncs += [(run.pos, members, "wait", w.event) for w in run.step.waits]
            syncs += [(run.pos, idle, "idle wait", w.event) for w in run.step.waits]
            syncs += [(run.pos, members, "signal", e) for e in run.step.signals]
        programs: list[list[tuple[int, str, str]]] = [[] for _ in range(self.blocks)]
        for pos, members, kind, name in sorted(syncs, key=lambda s: s[0]):
            for b in members:
                programs[b].append((pos, kind, name))
        return programs

    def _clocks(self, rows: list[tuple[int, int, Ints]]) -> list[tuple[int, Ints]]:
        out: list[tuple[int, Ints]] = []
        clock = np.full((self.blocks, self.blocks), -1, dtype=np.int64)
        for pos, b, row in sorted(rows, key=lambda r: r[0]):
            clock = clock.copy() if not out or out[-1][0] != pos else clock
            clock[b] = row
            if not out or out[-1][0] != pos:
                out.append((pos, clock))
        return out
