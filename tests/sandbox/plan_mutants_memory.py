"""Mutants that break ownership, homes, copies, zeroing and storage; see plan_mutants.py."""

from __future__ import annotations

import random
from collections.abc import Iterator

from sandbox.plan import Step
from tests.sandbox.plan_facts import Case, pick
from tests.sandbox.plan_mutants import MUTATIONS, breaks


def _owned(case: Case) -> list[Step]:
    return [s for _, _, s, _ in case.sites() if not s.replicated]


def _partials(case: Case) -> list[str]:
    return [t for t, b in case.plan.buffers.items() if b.home == "partial"]


# -- items and owners --------------------------------------------------------------------------------------------


@breaks("c", "an item too many: more owners than items")
def duplicate_item(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for step in pick(rng, _owned(case), count):
        k = rng.randrange(len(step.owner))
        yield case.with_step(step.node, owner=(*step.owner[:k], step.owner[k], *step.owner[k:]))


@breaks("c", "an item that nobody runs")
def drop_item(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for step in pick(rng, [s for s in _owned(case) if len(s.owner) > 1], count):
        k = rng.randrange(len(step.owner))
        yield case.with_step(step.node, owner=(*step.owner[:k], *step.owner[k + 1 :]))


@breaks("c", "a stage that nobody runs")
def drop_step(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for p, i, _, _ in pick(rng, case.sites(), count):
        steps = case.plan.phases[p].steps
        yield case.with_phase(p, steps=(*steps[:i], *steps[i + 1 :]))


@breaks("c", "a stage that runs twice: its cells are written (or added) twice")
def duplicate_step(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for p, _, step, _ in pick(rng, case.sites(), count):
        q = rng.randrange(p, len(case.plan.phases))
        yield case.with_phase(q, steps=(*case.plan.phases[q].steps, step))


@breaks("c", "an owner that is no block")
def owner_out_of_range(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for step in pick(rng, _owned(case), count):
        owner = list(step.owner)
        owner[rng.randrange(len(owner))] = rng.choice((-1, case.plan.blocks, case.plan.blocks + 3))
        yield case.with_step(step.node, owner=tuple(owner))


@breaks("d", "one item of an edge without barrier or wait went to another block, so words cross blocks unordered")
def owner_moved(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    edges = [e for e in case.plan.edges if case.bare(e) and case.plan.buffers[e.tensor].home == "shared"]
    for edge in pick(rng, edges, count):
        step = case.step(rng.choice((edge.producer, edge.consumer)))
        if step.replicated or case.plan.blocks == 1:
            continue
        owner = list(step.owner)
        k = rng.randrange(len(owner))
        owner[k] = (owner[k] + rng.randrange(1, case.plan.blocks)) % case.plan.blocks
        mutant = case.with_step(step.node, owner=tuple(owner))
        if mutant.races():
            yield mutant


@breaks("d", "another sharding whose items do not fall together with those of the neighbour stages")
def other_sharding(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    sites = [(s, sh) for _, _, s, n in case.sites() for sh in n.shardings.values() if sh.name != s.sharding and not s.replicated]
    for step, sharding in pick(rng, sites, count):
        node = case.graph.by_name[step.node]
        if any(b.mode == "add" for b in (*sharding.boxes.values(), *node.shardings[step.sharding].boxes.values())):
            continue
        owner = tuple(i * case.plan.blocks // sharding.items for i in range(sharding.items))
        mutant = case.with_step(step.node, sharding=sharding.name, owner=owner)
        if mutant.races():
            yield mutant


@breaks("c", "the owners are those of another sharding with another number of items")
def sharding_without_owners(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    sites = [(s, sh) for _, _, s, n in case.sites() for sh in n.shardings.values() if not s.replicated]
    for step, sharding in pick(rng, [(s, sh) for s, sh in sites if sh.items != len(s.owner)], count):
        yield case.with_step(step.node, sharding=sharding.name)


@breaks("c", "fewer blocks than owners name, or copies mapped for another number of blocks")
def blocks_changed(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    most = max((b for s in _owned(case) for b in s.owner), default=0)
    blocks = list(range(1, most + 1)) + ([case.plan.blocks + 1, case.plan.blocks + 2] if _partials(case) else [])
    for n in pick(rng, [b for b in blocks if b != case.plan.blocks], count):
        yield case.but(blocks=n, arrivals=0)


# -- replication and homes ---------------------------------------------------------------------------------------


@breaks("cdg", "one block runs a step whose private output other blocks read: their copies are not written")
def unreplicated(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    if case.plan.blocks == 1:
        return
    sites = [s for _, _, s, n in case.sites() if s.replicated and n.outputs and case.role(next(iter(n.outputs.values()))) != "output"]
    for step in pick(rng, sites, count):
        node = case.graph.by_name[step.node]
        block = rng.randrange(case.plan.blocks)
        mutant = case.with_step(step.node, replicated=False, owner=(block,) * node.shardings[step.sharding].items)
        others = [r for t in node.outputs.values() for r in case.readers(t) if mutant.runners(mutant.step(r)) - {block}]
        if others:
            yield mutant
        shared = mutant.with_homes(list(node.outputs.values()), "shared")
        if shared.races():
            yield shared


@breaks("ceg", "every block changes the same state, or adds the same items, at once")
def replicated_change(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    sites = []
    for _, _, step, node in case.sites():
        modes = {b.mode for b in node.shardings[step.sharding].boxes.values()}
        if not step.replicated and case.plan.blocks > 1 and modes & {"state", "add"} and not step.signals:
            sites.append((step, node))
    for step, node in pick(rng, sites, count):
        mutant = case.with_step(step.node, replicated=True, owner=())
        yield mutant.with_homes([t for t in node.outputs.values() if case.plan.buffers[t].home == "shared"], "private")


@breaks("c", "nobody is the writer of a replicated step that changes a state or an output")
def writer_out_of_range(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    sites = [s for _, _, s, n in case.sites() if n.states and not n.outputs or any(case.role(t) == "output" for t in n.outputs.values())]
    for step in pick(rng, sites, count):
        yield case.with_step(step.node, replicated=True, owner=(), writer=rng.choice((-1, case.plan.blocks)))


@breaks("cdg", "shared to private: blocks that run only some of the items leave their copies incomplete")
def shared_made_private(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    if case.plan.blocks > 1:
        for tensor in pick(rng, [t for t, b in case.plan.buffers.items() if b.home == "shared"], count):
            yield case.with_homes([tensor], "private")


@breaks("c", "private to shared: every block writes the same cells")
def private_made_shared(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    if case.plan.blocks > 1:
        for tensor in pick(rng, [t for t, b in case.plan.buffers.items() if b.home == "private"], count):
            yield case.with_homes([tensor], "shared")


@breaks("c", "sums need copies that somebody zeroed, and written cells need one place")
def partial_swapped(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    if case.plan.blocks == 1:
        return
    for tensor in pick(rng, [t for t in case.plan.buffers if not (t in _partials(case) and len(_adders(case, t)) < 2)], count):
        if case.plan.buffers[tensor].home == "partial":
            yield case.with_buffer(tensor, home=rng.choice(("shared", "private")), copies=1, copy_of=())
        else:
            n = case.plan.blocks
            yield case.with_buffer(tensor, home="partial", copies=n, copy_of=tuple(range(n)))


@breaks("c", "a tensor that lives nowhere")
def buffer_missing(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for tensor in pick(rng, list(case.plan.buffers), count):
        yield case.but(buffers={t: b for t, b in case.plan.buffers.items() if t != tensor})


# -- copies and zeroing ------------------------------------------------------------------------------------------


def _adders(case: Case, tensor: str) -> list[int]:
    return sorted(case.runners(case.step(case.graph.producers[tensor])))


@breaks("ce", "two blocks add to one copy in one step: plain adds race; atomic ones may come before the other block's zero")
def copies_merged(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    """On cuda only if zeroing and adds share a phase, in which no event orders one block's start before another's adds."""
    at = case.at()
    for tensor in pick(rng, _partials(case), count):
        blocks = _adders(case, tensor)
        buffer = case.plan.buffers[tensor]
        phase = case.plan.phases[at[case.graph.producers[tensor]][0]]
        same_phase = tensor in phase.zero and not any(s.waits for s in phase.steps)
        if len(blocks) < 2 or (case.plan.target == "cuda" and not same_phase):
            continue
        a, b = sorted(rng.sample(blocks, 2))
        one = rng.random() < 0.5
        to = [0 if one else buffer.copy_of[a] if k == b else c for k, c in enumerate(buffer.copy_of)]
        names = {c: i for i, c in enumerate(sorted(set(to)))}
        mutant = case.with_buffer(tensor, copies=len(names), copy_of=tuple(names[c] for c in to))
        if mutant.plan.buffers[tensor].copies < buffer.copies:
            yield mutant


@breaks("c", "a block adds to a copy that does not exist, or a copy exists that nobody zeroes although readers sum it")
def copy_out_of_range(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for tensor in pick(rng, _partials(case), count):
        buffer = case.plan.buffers[tensor]
        of = list(buffer.copy_of)
        of[rng.randrange(len(of))] = rng.choice((-1, buffer.copies, buffer.copies + 1))
        yield case.with_buffer(tensor, copy_of=tuple(of))
        yield case.with_buffer(tensor, copies=buffer.copies + rng.randint(1, 3))
        yield case.with_buffer(tensor, copy_of=buffer.copy_of[:-1])


def _rezeroed(case: Case, tensor: str, phases: list[int]) -> Case:
    out = case
    for p, phase in enumerate(case.plan.phases):
        kept = tuple(t for t in phase.zero if t != tensor) + (tensor,) * phases.count(p)
        if kept != phase.zero:
            out = out.with_phase(p, zero=kept)
    return out


@breaks("c", "nobody zeroes the copies")
def drop_zeroing(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for tensor in pick(rng, _partials(case), count):
        yield _rezeroed(case, tensor, [])


@breaks("c", "zeroed in a phase after the adds, while or before other blocks read the sum")
def zero_too_late(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for tensor in pick(rng, _partials(case), count):
        first = case.at()[case.graph.producers[tensor]][0] + 1
        if first < len(case.plan.phases):
            yield _rezeroed(case, tensor, [rng.randrange(first, len(case.plan.phases))])


@breaks("c", "zeroed twice in a launch")
def zero_twice(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for tensor in pick(rng, _partials(case), count):
        old = next(p for p, ph in enumerate(case.plan.phases) if tensor in ph.zero)
        yield _rezeroed(case, tensor, [old, rng.randrange(len(case.plan.phases))])


@breaks("c", "zeroes a buffer that nobody adds to")
def zero_of_owned(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for tensor in pick(rng, [t for t, b in case.plan.buffers.items() if b.home != "partial"], count):
        p = rng.randrange(len(case.plan.phases))
        yield case.with_phase(p, zero=(*case.plan.phases[p].zero, tensor))


# -- storage -----------------------------------------------------------------------------------------------------


@breaks("e", "byte 0 of both is written, the second tensor's after the first's and before the first is read for the last time")
def alias_live(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    at, made = case.at(), case.graph.producers
    pairs = []
    for a, first in case.plan.buffers.items():
        last = max((at[r] for r in case.readers(a)), default=at[made[a]])
        for b, second in case.plan.buffers.items():
            if first.home == second.home and first.storage != second.storage and at[made[a]] < at[made[b]] < last:
                pairs.append((a, b))
    for a, b in pick(rng, pairs, count):
        yield case.with_buffer(b, storage=case.plan.buffers[a].storage)


@breaks("e", "a step writes a tensor into the bytes of its input; only a `state` port may change its box in place")
def alias_in_place(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    held = case.plan.buffers
    pairs = [
        (a, b) for _, _, _, n in case.sites() for a in n.inputs.values() for b in n.outputs.values()
        if a in held and b in held and held[a].home == held[b].home and held[a].storage != held[b].storage
    ]  # fmt: skip
    for a, b in pick(rng, pairs, count):
        yield case.with_buffer(b, storage=held[a].storage)


@breaks("e", "one storage cannot be a block's own memory and everybody's")
def alias_homes(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    homes = {h: [t for t, b in case.plan.buffers.items() if (b.home == "private") == h] for h in (True, False)}
    if all(homes.values()):
        for _ in range(count):
            a, b = rng.choice(homes[True]), rng.choice(homes[False])
            yield case.with_buffer(a, storage=case.plan.buffers[b].storage)


@breaks("e", "the sums of one tensor are zeroed in a phase where another of the same storage is still read")
def alias_zeroed_early(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    pairs = []
    for a in _partials(case):
        for b in _partials(case):
            begin, end = case.lifetime(a), case.lifetime(b)
            if a != b and begin[0] < end[0] <= begin[1] and case.plan.buffers[a].storage != case.plan.buffers[b].storage:
                pairs.append((a, b))
    for a, b in pick(rng, pairs, count):
        yield case.with_buffer(b, storage=case.plan.buffers[a].storage)


ALL_MUTATIONS = tuple(MUTATIONS)  # those of plan_mutants.py and these
