"""One stage by itself: the harness in which the judge checks and times an Implementation (docs/contract.md, section 5)."""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.assembly import assemble
from sandbox.candidate import Candidate, Implementation
from sandbox.errors import AssemblyError
from sandbox.graph import StageGraph
from sandbox.plan import Buffer, Phase, Plan, Step


def alone_plan(graph: StageGraph, sharding: str, blocks: int, order: Sequence[int] | None = None) -> Plan:
    """A plan of one phase for a graph of one stage: items dealt in equal runs. `order` permutes the dealing, to show that
    the stage does not lean on the order of its items."""
    node = graph.nodes[0]
    if sharding not in node.shardings:
        raise AssemblyError(f"{node.name} has no sharding '{sharding}'; it offers {sorted(node.shardings)}")
    split = node.shardings[sharding]
    place = list(order) if order is not None else list(range(split.items))
    owner = [0] * split.items
    for rank, item in enumerate(place):
        owner[item] = rank * blocks // split.items
    buffers = {}
    zero = []
    for port, tensor in node.outputs.items():
        if split.boxes[port].mode == "add":
            buffers[tensor] = Buffer(tensor=tensor, home="partial", storage=tensor, copies=blocks, copy_of=tuple(range(blocks)))
            zero.append(tensor)
        else:
            buffers[tensor] = Buffer(tensor=tensor, home="shared", storage=tensor)
    step = Step(node=node.name, sharding=sharding, owner=tuple(owner))
    phase = Phase(name=node.name, steps=(step,), zero=tuple(zero), barrier=False)
    return Plan(name=f"alone-{sharding}", graph=graph.name, target="cpu", blocks=blocks, phases=(phase,), buffers=buffers, edges=())


def stage_candidate(graph: StageGraph, node: str, sharding: str, implementation: Implementation, blocks: int,
                    order: Sequence[int] | None = None, flags: tuple[str, ...] = ()) -> Candidate:  # fmt: skip
    """The candidate that runs one stage of a problem alone."""
    alone = graph.alone(node)
    source = assemble(alone, alone_plan(alone, sharding, blocks, order), {node: implementation})
    return Candidate(role="stage", target="cpu", source=source, node=node, threads=blocks, flags=flags,
                     implementations={node: implementation.id}, name=f"{implementation.name}@{node}/{sharding}")  # fmt: skip
