"""Is a plan well formed for its graph? The part of rule c, and the counts of barriers, without which items mean nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sandbox.graph import Node, StageGraph
from sandbox.legality_model import Violation
from sandbox.plan import Buffer, Plan, Step


def structure(plan: Plan, graph: StageGraph) -> Iterator[Violation]:
    """Violations that make the rest of the check meaningless: unknown or missing stages, wrong owners, buffers that cannot be."""
    if plan.graph != graph.name:
        yield Violation("c", f"the plan is for graph '{plan.graph}', not '{graph.name}': expand it for this graph")
    if plan.arrivals not in (0, plan.blocks):
        rule, fate = ("b", "returns early") if plan.arrivals < plan.blocks else ("a", "hangs")
        yield Violation(rule, f"barriers count {plan.arrivals} arrivals of {plan.blocks} blocks: a barrier {fate}; use 0 (all)")
    placed = Counter(s.node for _, s in plan.steps())
    for name in graph.by_name:
        if placed[name] != 1:
            yield Violation("c", f"stage {name} is placed {placed[name]} times: place it in one step")
    for phase in plan.phases:
        for step in phase.steps:
            where = f"phase {phase.name}, step {step.node}"
            node = graph.by_name.get(step.node)
            if node is None:
                yield Violation("c", f"{where}: the graph has no such stage")
            elif step.sharding not in node.shardings:
                yield Violation("c", f"{where}: no sharding '{step.sharding}'; the stage has {sorted(node.shardings)}")
            else:
                yield from _owners(plan, step, node, where)
                yield from _homes(plan, graph, step, node, where)
        for tensor in phase.zero:
            if tensor not in plan.buffers or plan.buffers[tensor].home != "partial":
                yield Violation("c", f"phase {phase.name} zeroes {tensor}, which is no partial buffer")
    for name, buffer in plan.buffers.items():
        yield from _buffer(plan, graph, name, buffer)


def _owners(plan: Plan, step: Step, node: Node, where: str) -> Iterator[Violation]:
    items = node.shardings[step.sharding].items
    if not 0 <= step.writer < plan.blocks:
        yield Violation("c", f"{where}: writer {step.writer} is none of the blocks 0..{plan.blocks - 1}")
    if step.replicated:
        return
    if len(step.owner) != items:
        yield Violation("c", f"{where}: {len(step.owner)} owners for {items} items of '{step.sharding}': each item has one owner")
    for item, block in enumerate(step.owner):
        if not 0 <= block < plan.blocks:
            yield Violation("c", f"{where}: item {item} is owned by block {block}, but blocks are 0..{plan.blocks - 1}")


def _homes(plan: Plan, graph: StageGraph, step: Step, node: Node, where: str) -> Iterator[Violation]:
    boxes = node.shardings[step.sharding].boxes
    for port, tensor in node.ports.items():
        box, decl = boxes[port], graph.tensors[tensor]
        if decl.role == "edge" and tensor not in plan.buffers:
            yield Violation("c", f"{where}: {tensor} has no buffer: say where it lives")
            return
        allowed = ("own", "add") if port in node.outputs else ("read",) if port in node.inputs else ("read", "state", "append")
        if box.mode not in allowed:
            yield Violation("c", f"{where}: port {port} is used as '{box.mode}', allowed are {allowed}")
        partial = decl.role == "edge" and plan.buffers[tensor].home == "partial"
        if port in node.outputs and (box.mode == "add") != partial:
            home = plan.buffers[tensor].home if tensor in plan.buffers else decl.role
            yield Violation("c", f"{where}: '{box.mode}' output {tensor} lives in a {home} buffer; partial is for `add` alone")
        last = (node.shardings[step.sharding].items - 1) * box.size + (box.rows - 1) * box.stride + box.size
        if box.mode != "append" and last > decl.size:
            yield Violation("c", f"{where}: its last item sees {tensor}[..{last}), but the tensor has {decl.size} elements")


def _buffer(plan: Plan, graph: StageGraph, name: str, buffer: Buffer) -> Iterator[Violation]:
    decl = graph.tensors.get(name)
    if buffer.tensor != name or decl is None or decl.role != "edge":
        yield Violation("c", f"buffer '{name}' (of '{buffer.tensor}') belongs to no edge tensor of the graph")
    elif buffer.home != "partial":
        if buffer.copies != 1 or buffer.copy_of:
            yield Violation("c", f"buffer {name} is {buffer.home} but names {buffer.copies} copies: those are for partial ones")
    elif len(buffer.copy_of) != plan.blocks:
        yield Violation("c", f"buffer {name} maps {len(buffer.copy_of)} blocks to copies, the plan has {plan.blocks}")
    else:
        for block, copy in enumerate(buffer.copy_of):
            if not 0 <= copy < buffer.copies:
                yield Violation("c", f"buffer {name}: block {block} adds to copy {copy} of 0..{buffer.copies - 1}")
        for copy in sorted(set(range(buffer.copies)) - set(buffer.copy_of))[:1]:
            yield Violation("c", f"buffer {name}: copy {copy} has no block, so nobody zeroes what readers sum: use fewer copies")
