"""Who may touch which cell when: rules c and e of docs/contract.md section 4 (see legality.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from sandbox.graph import DTYPE_BYTES
from sandbox.legality_model import Accesses, Ints, Model, Run, Violation

ATOMIC_ADDS = {"cpu": False, "cuda": True}


def not_before(model: Model, first: Accesses, second: Accesses, *, own_item: bool = False) -> str:
    """Words for a pair that is not ordered first -> second, or nothing."""
    pair = model.unordered(first, second, own_item=own_item)
    return f"{second.describe(pair[1])}, but nothing orders it after: {first.describe(pair[0])}" if pair else ""


def owned(model: Model) -> Iterator[Violation]:
    """Rule c for `own` outputs: the items tile the tensor, in every copy."""
    for run in model.runs:
        for port, tensor in run.node.outputs.items():
            if run.sharding.boxes[port].mode == "add":
                continue
            writes = model.accesses(run, port)
            if model.home(tensor) == "private" and model.blocks > 1:
                if not run.step.replicated:
                    yield _half_private(model, run, tensor)
                    continue
                writes = writes.only(writes.block == 0)  # every block runs the same items: one copy stands for all
            yield from _tiles([writes], 0, model.graph.tensors[tensor].size)


def _half_private(model: Model, run: Run, tensor: str) -> Violation:
    """With two blocks or more, items that have one owner each cannot fill the copies of all blocks."""
    idle = np.setdiff1d(model.everyone, run.blocks)
    block = int(idle[0]) if len(idle) else 1
    return Violation(
        "c",
        f"{run.where}: {tensor} is private, so the copy of every block must be written whole, but block {block} runs only some "
        "of the items: replicate the step or make the buffer shared",
    )


def _tiles(writes: list[Accesses], start: int, end: int) -> Iterator[Violation]:
    """The written intervals cover [start, end) of a tensor exactly once."""
    lo: Ints = np.concatenate([w.lo for w in writes])
    hi: Ints = np.concatenate([w.hi for w in writes])
    order = np.argsort(lo, kind="stable")
    edges: Ints = np.concatenate((lo[order], (end,)))
    ends: Ints = np.concatenate(((start,), hi[order]))
    if np.array_equal(edges, ends):
        return
    k = int(np.flatnonzero(edges != ends)[0])
    tensor = writes[0].tensor
    flat = [w.describe(i) for w in writes for i in range(len(w.lo))]
    near = flat[int(order[min(k, len(order) - 1)])]
    if edges[k] > ends[k]:
        yield Violation("c", f"{tensor}[{ends[k]}:{edges[k]}) is written by nobody (beside {near}): items must tile the tensor")
    else:
        yield Violation("c", f"{tensor}[{edges[k]}:{ends[k]}) is written twice or past its end ({near}): one writer per cell")


def added(model: Model) -> Iterator[Violation]:
    """Rules c and e for partial buffers: zeroed once, before the adds; each item added once; plain adds to one copy ordered."""
    for run in model.runs:
        for port, tensor in run.node.outputs.items():
            if run.sharding.boxes[port].mode != "add":
                continue
            if run.step.replicated and model.blocks > 1:
                yield Violation("c", f"{run.where}: replicated, each item adds to {tensor} in every block: give it one owner")
            adds = model.accesses(run, port)
            zeros = model.zeroings.get(tensor, [])
            if len(zeros) != 1:
                text = f"{run.where}: {tensor} is zeroed {len(zeros)} times, not once"
                yield Violation("c", f"{text}: name it in `zero` of one phase")
            for pos, phase in zeros:
                text = not_before(model, model.zero_accesses(tensor, pos, phase), adds)
                if text:
                    yield Violation("c", f"{text}: zero it in an earlier phase")
            if not ATOMIC_ADDS[model.plan.target]:
                yield from _plain_adds(model, adds)


def _plain_adds(model: Model, adds: Accesses) -> Iterator[Violation]:
    """Adds of two blocks to one copy are read-modify-writes within one step, which nothing orders."""
    meet = adds.copy[:, None] == adds.copy
    meet &= adds.block[:, None] != adds.block
    meet &= (adds.lo[:, None] < adds.hi) & (adds.lo < adds.hi[:, None])
    if meet.any():
        j, k = (int(x) for x in np.argwhere(meet)[0])
        yield Violation(
            "e",
            f"race: {adds.describe(j)} and {adds.describe(k)}, and adds are plain on {model.plan.target}: give every block that "
            "adds a copy of its own",
        )


def states(model: Model, positions: Sequence[int]) -> Iterator[Violation]:
    """Rules c, d and e for states: written once and whole, and ordered with those who only read. For caches at each position,
    up to the first that breaks a rule."""
    order = {n.name: i for i, n in enumerate(model.graph.nodes)}
    for tensor, decl in model.graph.tensors.items():
        if decl.role != "state":
            continue
        cache = any(mode == "append" for _, _, mode in model.uses[tensor])
        for filled in positions if cache else [None]:
            found = list(_state(model, tensor, filled, order))
            yield from found
            if found:
                break


def _state(model: Model, tensor: str, filled: int | None, order: dict[str, int]) -> Iterator[Violation]:
    """One state at one position: `filled` rows, or None if it is no cache."""
    decl = model.graph.tensors[tensor]
    uses = model.uses[tensor]
    writes = [(r, model.accesses(r, p, filled)) for r, p, mode in uses if mode in ("append", "state")]
    if not writes:
        return
    row = decl.size // decl.shape[0]
    start, end = (0, decl.size) if filled is None else (filled * row, (filled + 1) * row)
    yield from _tiles([w for _, w in writes], start, end)
    for run, port, mode in uses:
        if mode == "append":
            continue
        read = model.accesses(run, port, filled, verb="reads")
        for writer, write in writes:
            if order[run.node.name] <= order[writer.node.name]:
                text = not_before(model, read, write, own_item=True)
            else:
                text = not_before(model, write, read)
            if text:
                where = "" if filled is None else f" (position {filled})"
                yield Violation("e", f"{text}{where}: a state is read before or after its change as the graph lists the stages")


def storages(model: Model) -> Iterator[Violation]:
    """Rule e for tensors that share bytes: all uses of one come before any write of the other."""
    names: dict[str, list[str]] = {}
    for tensor, buffer in model.plan.buffers.items():
        names.setdefault(buffer.storage, []).append(tensor)
    for storage, tensors in names.items():
        uses = {t: model.all_accesses(t) for t in tensors} if len(tensors) > 1 else {}
        for a, b in combinations(uses, 2):
            text = _alias(model, a, b, uses)
            if text:
                yield Violation("e", f"storage '{storage}' of {a} and {b}: {text}: give them storages of their own")


def _alias(model: Model, a: str, b: str, uses: dict[str, list[Accesses]]) -> str:
    """Why tensors a and b cannot share bytes, or nothing. Copies of unlike layout are taken to overlap wherever they lie."""
    first, second = model.plan.buffers[a], model.plan.buffers[b]
    if "private" in (first.home, second.home) and first.home != second.home:
        return f"one is {first.home} and one is {second.home}, which lie in different memory"
    x, y = model.graph.tensors[a], model.graph.tensors[b]
    alike = first.home == second.home and (first.home != "partial" or (first.copies, x.bytes) == (second.copies, y.bytes))
    width = DTYPE_BYTES[x.dtype], DTYPE_BYTES[y.dtype]
    text = _overtaken(model, uses[a], uses[b], alike, width)
    return text and (_overtaken(model, uses[b], uses[a], alike, width[::-1]) and text)


def _overtaken(model: Model, earlier: list[Accesses], later: list[Accesses], alike: bool, width: tuple[int, int]) -> str:
    """An access of `earlier` that does not precede a conflicting one of `later`, in words."""
    for x in earlier:
        for y in later:
            if x.verb == y.verb == "reads":
                continue
            pair = model.unordered(*((x, y) if alike else (x.anywhere(), y.anywhere())), bytes_per=width if alike else (1, 1))
            if pair:
                return f"{x.describe(pair[0])} is not before {y.describe(pair[1])}"
    return ""
