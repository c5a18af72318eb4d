"""Variants of legal plans that mean the same and must stay legal; each operator gives one, or None where it has no place."""

from __future__ import annotations

import random
from collections.abc import Callable

from sandbox.graph import Node
from sandbox.plan import Phase, Step, Wait
from tests.sandbox.plan_facts import Case

Variation = Callable[[Case, random.Random], "Case | None"]


def _shuffled(n: int, rng: random.Random) -> list[int]:
    order = list(range(n))
    rng.shuffle(order)
    return order


def rename_blocks(case: Case, rng: random.Random) -> Case | None:
    """The same plan with blocks named otherwise, copies along with them."""
    if _merged(case):
        return None  # whoever zeroes a copy must still precede those who add
    new = _shuffled(case.plan.blocks, rng)
    out = case.owners({s.node: tuple(new[b] for b in s.owner) for _, _, s, _ in case.sites() if s.owner})
    for _, _, step, _ in case.sites():
        out = out.with_step(step.node, writer=new[step.writer])
    for tensor, buffer in case.plan.buffers.items():
        if buffer.home == "partial":
            of = [0] * case.plan.blocks
            for b, copy in enumerate(buffer.copy_of):
                of[new[b]] = copy
            out = out.with_buffer(tensor, copy_of=tuple(of))
    return out


def permute_phase(case: Case, rng: random.Random) -> Case | None:
    """Other owners in one phase, the same permutation for all its steps, so that each chain stays in one block."""
    p = rng.randrange(len(case.plan.phases))
    if _merged(case) or not all(ph.barrier for ph in case.plan.phases[:-1]):
        return None
    inside = {s.node for s in case.plan.phases[p].steps}
    if any(e.kind == "same_block" and (e.producer in inside) != (e.consumer in inside) and not _private(case, e.tensor)
           for e in case.plan.edges):  # fmt: skip
        return None
    new = _shuffled(case.plan.blocks, rng)
    return case.owners({s.node: tuple(new[b] for b in s.owner) for s in case.plan.phases[p].steps if s.owner})


def _merged(case: Case) -> bool:
    return any(b.home == "partial" and b.copies < case.plan.blocks for b in case.plan.buffers.values())


def _private(case: Case, tensor: str) -> bool:
    return case.plan.buffers[tensor].home == "private"


def scatter_owners(case: Case, rng: random.Random) -> Case | None:
    """Any owners for a step between barriers: its edges all cross one, or stay in a private buffer of earlier steps."""
    at = case.at()
    sites = []
    for _, _, step, node in case.sites():
        edges = [e for e in case.plan.edges if node.name in (e.producer, e.consumer) and not _private(case, e.tensor)]
        far = all(e.kind == "barrier" and case.barrier_between(at[e.producer][0], at[e.consumer][0]) for e in edges)
        if step.owner and far and not step.signals and not _merged(case):
            sites.append(step)
    if not sites:
        return None
    step = rng.choice(sites)
    return case.with_step(step.node, owner=tuple(rng.randrange(case.plan.blocks) for _ in step.owner))


def extra_barrier(case: Case, rng: random.Random) -> Case | None:
    """A phase split in two."""
    p = rng.randrange(len(case.plan.phases))
    phase = case.plan.phases[p]
    if len(phase.steps) < 2:
        return None
    k = rng.randrange(1, len(phase.steps))
    head = phase.model_copy(update={"name": f"{phase.name}.a", "steps": phase.steps[:k], "barrier": True})
    tail = phase.model_copy(update={"name": f"{phase.name}.b", "steps": phase.steps[k:], "zero": ()})
    return case.but(phases=(*case.plan.phases[:p], head, tail, *case.plan.phases[p + 1 :]))


def empty_phase(case: Case, rng: random.Random) -> Case | None:
    """A phase that does nothing, with a barrier."""
    p = rng.randrange(len(case.plan.phases))
    return case.but(phases=(*case.plan.phases[:p], Phase(name=f"pause{len(case.plan.phases)}", steps=()), *case.plan.phases[p:]))


def final_barrier(case: Case, rng: random.Random) -> Case | None:
    """A barrier that ends the launch orders nothing that the launch's end does not."""
    return case.with_phase(len(case.plan.phases) - 1, barrier=True)


def reorder_independent(case: Case, rng: random.Random) -> Case | None:
    """Two neighbours of a phase without an edge or event between them change places."""
    pairs = {(e.producer, e.consumer) for e in case.plan.edges}
    sites = []
    for p, phase in enumerate(case.plan.phases):
        for i, (a, b) in enumerate(zip(phase.steps, phase.steps[1:], strict=False)):
            told = {w.event for w in b.waits} & set(a.signals)
            # b may lean on what a waited for.
            if (a.node, b.node) not in pairs and not told and not a.waits:
                sites.append((p, i))
    if not sites:
        return None
    p, i = rng.choice(sites)
    steps = list(case.plan.phases[p].steps)
    steps[i], steps[i + 1] = steps[i + 1], steps[i]
    return case.with_phase(p, steps=tuple(steps))


def rename_storages(case: Case, rng: random.Random) -> Case | None:
    """Storages with other names."""
    names = sorted({b.storage for b in case.plan.buffers.values()})
    new = {s: f"m{k}" for s, k in zip(names, _shuffled(len(names), rng), strict=True)}
    return case.but(buffers={t: b.model_copy(update={"storage": new[b.storage]}) for t, b in case.plan.buffers.items()})


def into_next_phase(case: Case, rng: random.Random) -> Case | None:
    """A stage that nobody needs yet joins the (independent) stages of the next phase."""
    at = case.at()
    shared = {b.storage for b in case.plan.buffers.values() if sum(c.storage == b.storage for c in case.plan.buffers.values()) > 1}
    sites = []
    for p, _, step, node in case.sites():
        if p + 1 >= len(case.plan.phases) - 1 or step.waits or step.signals or len(case.plan.phases[p].steps) < 2:
            continue
        uses = [e for e in case.plan.edges if e.producer == node.name]
        needed = any(not case.barrier_between(p + 1, at[e.consumer][0]) for e in uses)
        kept = {case.plan.buffers[t].storage for t in node.ports.values() if t in case.plan.buffers}
        if not needed and not kept & shared and node.outputs:
            sites.append((node.name, p + 1))
    if not sites:
        return None
    name, phase = rng.choice(sites)
    return case.moved(name, phase, len(case.plan.phases[phase].steps))


def _repeatable(case: Case, p: int, step: Step, node: Node) -> bool:
    """Every block could run the whole stage: inputs whole everywhere before it, nothing changed in place, nothing added."""
    modes = {b.mode for b in node.shardings[step.sharding].boxes.values()}
    if step.replicated or modes & {"state", "add"} or step.signals or step.waits:
        return False
    at = case.at()
    for tensor in node.inputs.values():
        maker = case.graph.producers.get(tensor)
        if maker and not case.barrier_between(at[maker][0], p) and not (_private(case, tensor) and case.step(maker).replicated):
            return False
    return True


def replicate(case: Case, rng: random.Random) -> Case | None:
    """Redundant work instead of an exchange (a norm, a projection); a state's row or the step's output keeps one writer."""
    sites = [(step, node) for p, _, step, node in case.sites() if _repeatable(case, p, step, node)]
    if not sites:
        return None
    step, node = rng.choice(sites)
    out = case.with_step(step.node, replicated=True, owner=(), writer=rng.randrange(case.plan.blocks))
    return out.with_homes(list(node.outputs.values()), "private")


def flag_replicated(case: Case, rng: random.Random) -> Case | None:
    """A stage handed over by a flag (kv_a) is repeated in every block instead: no event, private output."""
    flagged = [e for e in case.plan.edges if e.kind == "flag"]
    at = case.at()
    if not flagged:
        return None
    maker = case.step(flagged[0].producer)
    node = case.graph.by_name[maker.node]
    plain = case.with_step(maker.node, signals=(), waits=())
    if not _repeatable(plain, at[maker.node][0], plain.step(maker.node), node):
        return None
    out = plain.with_step(maker.node, replicated=True, owner=())
    for _, _, step, _ in case.sites():
        if step.waits and step.node != maker.node:
            out = out.with_step(step.node, waits=tuple(w for w in step.waits if w.event not in maker.signals))
    return out.with_homes(list(node.outputs.values()), "private").with_kinds({e: "same_block" for e in flagged if e.producer == maker.node})


def reuse_storage(case: Case, rng: random.Random) -> Case | None:
    """Tensors of one home and size whose lives are phases apart share bytes (across layers, say)."""
    groups: dict[str, list[str]] = {}
    order = list(case.plan.buffers)
    rng.shuffle(order)
    life = {t: case.lifetime(t) for t in order}
    for tensor in order:
        buffer = case.plan.buffers[tensor]
        for members in groups.values():
            first = case.plan.buffers[members[0]]
            alike = (first.home, first.copies, first.copy_of) == (buffer.home, buffer.copies, buffer.copy_of)
            alike &= buffer.home != "partial" or case.graph.tensors[members[0]].size == case.graph.tensors[tensor].size
            apart = all(_apart(case, life[tensor], life[m]) for m in members)
            if alike and apart and rng.random() < 0.7:
                members.append(tensor)
                break
        else:
            groups[tensor] = [tensor]
    names = {t: f"s.{k}" for k, members in groups.items() for t in members}
    return case.but(buffers={t: b.model_copy(update={"storage": names[t]}) for t, b in case.plan.buffers.items()})


def _apart(case: Case, a: tuple[int, int], b: tuple[int, int]) -> bool:
    first, second = sorted((a, b))
    return first[1] < second[0] and case.barrier_between(first[1], second[0])


def earlier_zero(case: Case, rng: random.Random) -> Case | None:
    """Copies zeroed some phases before they are needed, where their storage is their own."""
    own = [t for t, b in case.plan.buffers.items() if b.home == "partial"
           and sum(c.storage == b.storage for c in case.plan.buffers.values()) == 1]  # fmt: skip
    if not own:
        return None
    tensor = rng.choice(own)
    old = next(p for p, ph in enumerate(case.plan.phases) if tensor in ph.zero)
    new = rng.randrange(old + 1)
    out = case.with_phase(old, zero=tuple(t for t in case.plan.phases[old].zero if t != tensor))
    return out.with_phase(new, zero=(*out.plan.phases[new].zero, tensor))


def useless_event(case: Case, rng: random.Random) -> Case | None:
    """A step tells a later phase what the barrier between them told already."""
    sites = case.sites()
    a, b = sorted(rng.sample(range(len(sites)), 2))
    (p, _, early, _), (q, _, late, _) = sites[a], sites[b]
    event = f"extra.{early.node}.{late.node}"
    if not case.barrier_between(p, q) or event in early.signals:
        return None
    out = case.with_step(early.node, signals=(*early.signals, event))
    return out.with_step(late.node, waits=(*late.waits, Wait(event=event, count=len(case.runners(early)))))


def unheard_signal(case: Case, rng: random.Random) -> Case | None:
    """An event nobody waits for."""
    _, _, step, _ = rng.choice(case.sites())
    return case.with_step(step.node, signals=(*step.signals, f"unheard.{step.node}"))


def arrivals_spelt_out(case: Case, rng: random.Random) -> Case | None:
    """All blocks, as a number."""
    return case.but(arrivals=case.plan.blocks)


def for_cuda(case: Case, rng: random.Random) -> Case | None:
    """Where adds are atomic, two blocks may share a copy that was zeroed before a barrier."""
    out = case.but(target="cuda")
    at = case.at()
    for tensor, buffer in case.plan.buffers.items():
        zeroed = next((p for p, ph in enumerate(case.plan.phases) if tensor in ph.zero), None)
        alone = sum(c.storage == buffer.storage for c in case.plan.buffers.values()) == 1
        if buffer.home == "partial" and zeroed is not None and alone and case.barrier_between(zeroed, at[case.graph.producers[tensor]][0]):
            copies = rng.randint(1, buffer.copies)
            out = out.with_buffer(tensor, copies=copies, copy_of=tuple(b % copies for b in range(case.plan.blocks)))
    return out


def one_block_no_barriers(case: Case, rng: random.Random) -> Case | None:
    """A single block needs none: program order is enough."""
    if case.plan.blocks > 1:
        return None
    out = case.but(phases=tuple(ph.model_copy(update={"barrier": False}) for ph in case.plan.phases))
    return out.with_kinds({e: "same_block" for e in case.plan.edges if e.kind == "barrier"})


VARIATIONS: list[Variation] = [
    rename_blocks, permute_phase, scatter_owners, extra_barrier, empty_phase, final_barrier, reorder_independent, rename_storages,
    into_next_phase, replicate, flag_replicated, reuse_storage, earlier_zero, useless_event, unheard_signal, arrivals_spelt_out,
    for_cuda, one_block_no_barriers,
]  # fmt: skip
