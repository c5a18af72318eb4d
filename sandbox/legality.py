"""Is a plan legal? The rules a..i of docs/contract.md section 4, checked by enumeration.

The model (items, cells, happens-before) is in legality_model.py; nothing that the planner claims is believed, the claims
themselves (edge kinds, dropped roundings) are checked against it. What the rules mean for this form of plan:

a  every block gets to its end: no wait before its own signal (not even if blocks without items wait too, as the CPU
   assembler lets them), no event that nobody signals, no count too high;
b  every wait asks for exactly the signals of a launch, every barrier for one arrival of every block;
c  every stage is placed once, every item has one owner in range, items tile each tensor that they own, in every copy of it (a
   private buffer has one copy per block, so a replicated step fills it); add cells are zeroed exactly once, before the adds;
d  every read, also of expert ids that choose pages, has all writes of its cells before it; each edge says truly what orders it;
e  conflicting accesses are ordered: adds to one copy on a target whose adds are plain, tensors that share storage, states;
f  nothing to check yet: this form of plan has no asynchronous (bulk) reads of memory that was written in the launch, and
   pages are static or weights, so no proxy fence can be missing. Give Plan a field for such copies before using them;
g  what a replicated step reads is the same in every block, and it changes no state in place;
h  the machine can run all blocks at once and hold the buffers;
i  rounding points that the implementations drop are listed in the plan, each with its measured error.

Launch parameters: positions change only the rows of caches, so only cache accesses are enumerated for each of them. Routed
ids choose pages and appear in no owner, wait, signal or box; what remains is that they are known before the step that
selects by them (d), equal in all blocks (g), and in range of the packed units for the lowest and the highest ids (d).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sandbox.errors import IllegalPlan
from sandbox.graph import StageGraph
from sandbox.legality_memory import added, not_before, owned, states, storages
from sandbox.legality_model import Machine, Model, Run, Violation
from sandbox.legality_structure import structure
from sandbox.plan import Plan

__all__ = ["Machine", "Violation", "check_plan", "default_positions", "require_legal"]

CHUNK = 64  # cached rows that a stage handles at a time; positions around it are tried


def default_positions(graph: StageGraph) -> tuple[int, ...]:
    """Rows in the cache before the append, at the ends of every range that stages care about."""
    caches = [graph.tensors[t].shape[0] for n in graph.nodes for t in n.states.values()]
    usual = max(caches, default=CHUNK)
    return tuple(sorted({0, 1, CHUNK - 1, CHUNK, CHUNK + 1, usual - 1, usual, 2048, 2**31 - 2}))


def check_plan(
    plan: Plan,
    graph: StageGraph,
    positions: Sequence[int] | None = None,
    limits: Machine | None = None,
    *,
    scratch: Mapping[str, int] | None = None,
    numerics: Mapping[str, Sequence[str]] | None = None,
) -> list[Violation]:
    """Every rule the plan breaks; an empty list means legal.

    `positions`: cache lengths to enumerate. `limits`: the machine (rule h), with `scratch` bytes by node. `numerics`: the
    rounding points each implementation skips, by node (rule i). Faults of structure end the check: nothing else has a
    meaning then."""
    found = list(structure(plan, graph))
    if found:
        return found
    model = Model(plan, graph)
    found += _events(model)
    found += owned(model)
    found += added(model)
    found += _reads(model)
    found += states(model, default_positions(graph) if positions is None else positions)
    found += storages(model)
    found += _edges(model)
    found += _replicated(model)
    found += _pages(model)
    found += _limits(model, limits, scratch or {})
    found += _roundings(plan, numerics or {})
    return found


def require_legal(
    plan: Plan,
    graph: StageGraph,
    positions: Sequence[int] | None = None,
    limits: Machine | None = None,
    *,
    scratch: Mapping[str, int] | None = None,
    numerics: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Raise IllegalPlan with every violation, or return."""
    found = check_plan(plan, graph, positions, limits, scratch=scratch, numerics=numerics)
    if found:
        raise IllegalPlan(plan.name, [str(v) for v in found])


def _events(model: Model) -> Iterator[Violation]:
    """Rules a and b."""
    signals = model.signals
    for run in model.runs:
        for wait in run.step.waits:
            have = signals.get(wait.event, 0)
            where = f"{run.where}: waits for {wait.count} signals of '{wait.event}'"
            if have == 0:
                yield Violation("a", f"{where} that no step signals: it hangs; let the producer signal it")
            elif wait.count > have:
                yield Violation("a", f"{where} but only {have} come in a launch: it hangs; set the count to {have}")
            elif wait.count < have:
                yield Violation("b", f"{where} but {have} come in a launch: it may return early; set the count to {have}")
    stuck = model.schedule[1]
    if stuck:
        shown = ", ".join(stuck[:4]) + (f" and {len(stuck) - 4} more" if len(stuck) > 4 else "")
        yield Violation("a", f"deadlock: {shown} wait for ever; move signals before the waits that need them")


def _reads(model: Model) -> Iterator[Violation]:
    """Rule d for edge and output tensors."""
    for run in model.runs:
        for port, tensor in run.node.inputs.items():
            producer = model.graph.producers.get(tensor)
            if producer is None:
                continue
            maker = model.by_node[producer]
            if model.home(tensor) == "private" and maker.step.replicated and maker.pos < run.pos:
                continue  # whole in every copy, and program order does the rest
            reads = model.accesses(run, port)
            writes = [model.accesses(maker, p) for p, t in maker.node.outputs.items() if t == tensor]
            writes += [model.zero_accesses(tensor, pos, phase) for pos, phase in model.zeroings.get(tensor, ())]
            for write in writes:
                text = not_before(model, write, reads)
                if text:
                    chosen = " (its pages are chosen by it)" if port == run.sharding.selects else ""
                    yield Violation("d", f"{text}{chosen}: put a barrier or an event between, or give both one block")


def _edges(model: Model) -> Iterator[Violation]:
    """The claims of the plan's edges: each edge of the graph has one, and it is what happens-before shows."""
    claimed = {(e.producer, e.consumer, e.tensor) for e in model.plan.edges}
    made = model.graph.producers
    real = {(made[t], n.name, t): p for n in model.graph.nodes for p, t in n.inputs.items() if t in made}
    for producer, consumer, tensor in real.keys() - claimed:
        yield Violation("d", f"edge {producer} -> {consumer} over {tensor} has no sync: name what orders it")
    for edge in model.plan.edges:
        port = real.get((edge.producer, edge.consumer, edge.tensor))
        if port is None:
            yield Violation("d", f"edge {edge.producer} -> {edge.consumer} over {edge.tensor} is not in the graph: remove it")
            continue
        true = _kinds(model, model.by_node[edge.producer], model.by_node[edge.consumer], edge.tensor, port)
        if edge.kind not in true:
            shown = " or ".join(sorted(true)) or "nothing"
            claim = f"edge {edge.producer} -> {edge.consumer} over {edge.tensor} claims '{edge.kind}'"
            yield Violation("d", f"{claim}, but {shown} orders it")


def _kinds(model: Model, maker: Run, reader: Run, tensor: str, port: str) -> set[str]:
    """Every kind of sync that alone orders this edge. Never `tag`: this form of plan has no tagged buffers."""
    kinds = {"barrier"} if model.barrier_between(maker.pos, reader.pos) else set()
    if maker.pos < reader.pos and model.home(tensor) == "private":
        return kinds | {"same_block"}
    reads = model.accesses(reader, port)
    for p, t in maker.node.outputs.items():
        if t == tensor:
            crosses, ordered, flagged = model.crossings(model.accesses(maker, p), reads)
            kinds |= ({"same_block"} if not crosses else set()) | ({"flag"} if ordered and flagged else set())
    return kinds


def _replicated(model: Model) -> Iterator[Violation]:
    """Rule g. Shared and partial data, once complete (d), is one set of words; a private tensor is the same in every block
    only if a replicated step made it from data that is."""
    uniform = {t for t in model.graph.tensors if model.home(t) != "private"}
    for run in sorted(model.runs, key=lambda r: r.pos):
        split = [t for t in run.node.inputs.values() if t not in uniform]
        selector = run.node.inputs.get(run.sharding.selects, "")
        if run.step.replicated and not split:
            uniform |= set(run.node.outputs.values())
        elif (run.step.replicated and model.blocks > 1) or selector in split:
            yield Violation("g", f"{run.where}: reads {split[0]}, which may differ between blocks: replicate the steps before it")
        changed = [t for p, t in run.node.states.items() if run.sharding.boxes[p].mode == "state"]
        if run.step.replicated and changed and model.blocks > 1:
            text = f"{run.where}: every block reads {changed[0]} while block {run.step.writer} changes it in place"
            yield Violation("g", f"{text}: give items one owner")


def _pages(model: Model) -> Iterator[Violation]:
    """Extreme routings stay inside the packed units."""
    for run in model.runs:
        s = run.sharding
        if not s.selects:
            continue
        if s.selects not in run.node.inputs:
            yield Violation("d", f"{run.where}: pages are chosen by port '{s.selects}', which is no input of the stage")
            continue
        chosen = -(-s.items // s.period)
        have = model.graph.tensors[run.node.inputs[s.selects]].size
        if s.units % s.period or chosen > have:
            text = f"{s.items} items need {chosen} ids of {have}, and {s.units} units come in runs of {s.period}"
            yield Violation("d", f"{run.where}: {text}: pages would lie outside the packed units")


def _limits(model: Model, limits: Machine | None, scratch: Mapping[str, int]) -> Iterator[Violation]:
    """Rule h."""
    if limits is None:
        return
    if model.blocks > limits.blocks:
        text = f"{model.blocks} blocks, but the machine runs {limits.blocks} at once: a barrier would hang"
        yield Violation("h", f"{text}; use fewer blocks")
    private: dict[str, int] = {}
    shared: dict[str, int] = {}
    for tensor, buffer in model.plan.buffers.items():
        held = private if buffer.home == "private" else shared
        held[buffer.storage] = max(held.get(buffer.storage, 0), buffer.copies * model.graph.tensors[tensor].bytes)
    need = sum(private.values()) + max((scratch.get(r.node.name, 0) for r in model.runs), default=0)
    room = limits.private_bytes
    if room and need > room:
        yield Violation("h", f"a block needs {need} private bytes and has {room}: reuse storages or share buffers")
    need, room = sum(shared.values()), limits.workspace_bytes
    if room and need > room:
        yield Violation("h", f"shared buffers need {need} bytes and have {room}: reuse storages or use fewer copies")


def _roundings(plan: Plan, numerics: Mapping[str, Sequence[str]]) -> Iterator[Violation]:
    """Rule i: an entry of the plan reads `point: measured error`."""
    listed = {e.split(":", 1)[0].strip() for e in plan.dropped_roundings if e.partition(":")[2].strip()}
    used = {s.node for _, s in plan.steps()}
    for node, points in numerics.items():
        for point in points:
            if node in used and point not in listed:
                text = f"step {node}: its implementation drops the rounding '{point}'"
                yield Violation("i", f"{text}: list '{point}: measured error' in dropped_roundings")
