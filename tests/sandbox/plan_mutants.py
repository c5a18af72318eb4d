"""Mutants of legal plans, each illegal by the formal model (docs/contract.md, section 3) for the reason its operator gives.

An operator gets any legal plan whose program order puts producers before consumers, and yields up to `count` mutants at
random sites. Its reason must hold for every mutant it yields, whatever the checker thinks of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sandbox.plan import EdgeSync, Phase, Wait
from tests.sandbox.plan_facts import Case, pick

Operator = Callable[[Case, random.Random, int], Iterator[Case]]


@dataclass(frozen=True)
class Mutation:
    """An operator, the rules one of which it must break, and why."""

    name: str
    rules: str
    reason: str
    apply: Operator


MUTATIONS: list[Mutation] = []


def breaks(rules: str, reason: str) -> Callable[[Operator], Operator]:
    """Register an operator under its function's name."""

    def register(apply: Operator) -> Operator:
        MUTATIONS.append(Mutation(apply.__name__, rules, reason, apply))
        return apply

    return register


# -- barriers ----------------------------------------------------------------------------------------------------


def _sole_barrier(case: Case, p: int) -> list[EdgeSync]:
    """Edges over the barrier of phase p that no other barrier orders."""
    at, without = case.at(), case.with_phase(p, barrier=False)
    over = [e for e in case.plan.edges if at[e.producer][0] <= p < at[e.consumer][0]]
    return [e for e in over if not without.barrier_between(at[e.producer][0], at[e.consumer][0])]


@breaks("d", "an edge that claims 'barrier' has none between its ends any more")
def remove_barrier(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    phases = [p for p, ph in enumerate(case.plan.phases) if ph.barrier and any(e.kind == "barrier" for e in _sole_barrier(case, p))]
    for p in pick(rng, phases, count):
        yield case.with_phase(p, barrier=False)


@breaks(
    "d",
    "blocks read words of other blocks, and neither barrier nor wait is left between, whatever the edges claim",
)
def remove_barrier_and_lie(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for p in pick(rng, [p for p, ph in enumerate(case.plan.phases) if ph.barrier], count):
        mutant = case.with_phase(p, barrier=False).with_kinds(dict.fromkeys(_sole_barrier(case, p), "same_block"))
        if mutant.races():
            yield mutant


@breaks("d", "the barrier now stands before the producer (or after the consumer) of an edge that crosses blocks")
def move_barrier(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    out = []
    for p, phase in enumerate(case.plan.phases[:-1]):
        if phase.barrier and len(phase.steps) > 1:
            out.append(case.moved(phase.steps[-1].node, p + 1, 0))
        after = case.plan.phases[p + 1].steps
        if phase.barrier and len(after) > 1:
            out.append(case.moved(after[0].node, p, len(phase.steps)))
    yield from pick(rng, [m for m in out if m.races()], count)


@breaks("ab", "a barrier must count one arrival of every block: fewer let it return early, more hang it")
def wrong_arrivals(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    blocks = case.plan.blocks
    for arrivals in pick(rng, [a for a in (-1, 1, blocks - 1, blocks + 1, 2 * blocks) if a not in (0, blocks)], count):
        yield case.but(arrivals=arrivals)


# -- events ------------------------------------------------------------------------------------------------------


@breaks("d", "an edge that claims 'flag' has no wait left, and nothing else in its phase tells of events")
def remove_wait(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for edge in pick(rng, [e for e in case.plan.edges if e.kind == "flag" and case.step(e.consumer).waits], count):
        mutant = case.with_step(edge.consumer, waits=())
        if mutant.bare(edge):
            yield mutant
            if mutant.crosses(edge):
                yield mutant.with_kinds({edge: "same_block"})


@breaks("ab", "a wait must ask for exactly the signals of a launch: one fewer returns early, one more hangs")
def threshold(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    sites = [(s, k, d) for _, _, s, _ in case.sites() for k in range(len(s.waits)) for d in (-1, 1, 2, case.plan.blocks)]
    for step, k, delta in pick(rng, sites, count):
        waits = list(step.waits)
        waits[k] = Wait(event=waits[k].event, count=waits[k].count + delta)
        yield case.with_step(step.node, waits=tuple(waits))


@breaks("ab", "a second wait on the event asks for another number than the first; one of the two is wrong")
def duplicate_wait(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    sites = [(s, w) for _, _, s, _ in case.sites() for w in s.waits]
    for step, wait in pick(rng, sites, count):
        yield case.with_step(step.node, waits=(*step.waits, Wait(event=wait.event, count=2 * wait.count)))


@breaks("ab", "the signals of one step of an awaited event are missing: the wait hangs")
def remove_signal(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    awaited = {w.event for _, _, s, _ in case.sites() for w in s.waits}
    for step, event in pick(rng, [(s, e) for _, _, s, _ in case.sites() for e in s.signals if e in awaited], count):
        yield case.with_step(step.node, signals=tuple(e for e in step.signals if e != event))


@breaks("b", "more signals come in a launch than the wait counts, so some wait returns before the producer's own")
def extra_signal(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    awaited = sorted({w.event for _, _, s, _ in case.sites() for w in s.waits})
    sites = [(s, e) for _, _, s, _ in case.sites() for e in awaited]
    for step, event in pick(rng, sites, count):
        yield case.with_step(step.node, signals=(*step.signals, event))


@breaks("a", "no step signals the event")
def wait_for_nobody(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for _, _, step, _ in pick(rng, case.sites(), count):
        yield case.with_step(step.node, waits=(*step.waits, Wait(event="nobody", count=rng.randint(1, case.plan.blocks))))


@breaks("a", "every block that would signal waits for its own signal first")
def wait_for_self(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for _, _, step, _ in pick(rng, case.sites(), count):
        wait = Wait(event="self", count=len(case.runners(step)))
        yield case.with_step(step.node, waits=(*step.waits, wait), signals=(*step.signals, "self"))


@breaks(
    "a",
    "a step waits for a later one that cannot come: they share a block, or a barrier that the waiter never reaches",
)
def wait_for_later(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    sites = case.sites()
    for k in pick(rng, list(range(len(sites) - 1)), count):
        (p, _, early, _), (q, _, late, _) = sites[k], rng.choice(sites[k + 1 : k + 8])
        if case.barrier_between(p, q) or case.runners(early) & case.runners(late):
            mutant = case.with_step(late.node, signals=(*late.signals, "later"))
            yield mutant.with_step(early.node, waits=(*early.waits, Wait(event="later", count=len(case.runners(late)))))


@breaks(
    "d",
    "the event is signalled after the first step of the phase, but data of a later step crosses blocks unordered",
)
def incomplete_event(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for p in pick(rng, [p for p, ph in enumerate(case.plan.phases[:-1]) if ph.barrier and len(ph.steps) > 1], count):
        first, second = case.plan.phases[p].steps[0], case.plan.phases[p + 1]
        if any(s.waits for s in (*case.plan.phases[p].steps, *second.steps)):
            continue
        later = {s.node for s in case.plan.phases[p].steps[1:]}
        here = {s.node for s in second.steps}
        bare = case.with_phase(p, barrier=False)
        if not any(bare.bare(e) and bare.crosses(e) for e in case.plan.edges if e.producer in later and e.consumer in here):
            continue
        mutant = bare.with_step(first.node, signals=(*first.signals, "half"))
        wait = Wait(event="half", count=len(case.runners(first)))
        for step in second.steps:
            mutant = mutant.with_step(step.node, waits=(wait,))
        yield mutant.with_kinds(dict.fromkeys(_sole_barrier(case, p), "flag"))


# -- order of work -----------------------------------------------------------------------------------------------


@breaks("d", "a consumer comes before its producer in every block, and no wait holds it back")
def swap_dependent_steps(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    pairs = {(e.producer, e.consumer) for e in case.plan.edges}
    sites = [
        (p, i) for p, ph in enumerate(case.plan.phases) for i in range(len(ph.steps) - 1)
        if (ph.steps[i].node, ph.steps[i + 1].node) in pairs and not ph.steps[i].waits and not ph.steps[i + 1].waits
    ]  # fmt: skip
    for p, i in pick(rng, sites, count):
        steps = list(case.plan.phases[p].steps)
        steps[i], steps[i + 1] = steps[i + 1], steps[i]
        yield case.with_phase(p, steps=tuple(steps))


@breaks("d", "a phase runs before one that makes its inputs")
def swap_dependent_phases(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    at, phases = case.at(), case.plan.phases
    tied = sorted({at[e.producer][0] for e in case.plan.edges if at[e.consumer][0] == at[e.producer][0] + 1})
    for p in pick(rng, tied, count):
        if any(s.waits for s in (*phases[p].steps, *phases[p + 1].steps)):
            continue
        first, second = phases[p], phases[p + 1]
        swapped: list[Phase] = [
            second.model_copy(update={"barrier": first.barrier}),
            first.model_copy(update={"barrier": second.barrier}),
        ]
        yield case.but(phases=(*phases[:p], *swapped, *phases[p + 2 :]))


@breaks("d", "a step moved to an earlier phase than the producer of its input")
def consumer_too_early(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    at = case.at()
    edges = [e for e in case.plan.edges if at[e.producer][0] > 0 and not case.step(e.consumer).waits]
    for edge in pick(rng, edges, count):
        yield case.moved(edge.consumer, rng.randrange(at[edge.producer][0]), 0)


@breaks("d", "two phases became one although words cross blocks between them")
def merge_dependent_phases(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    phases = case.plan.phases
    for p in pick(rng, list(range(len(phases) - 1)), count):
        a, b = phases[p], phases[p + 1]
        merged = b.model_copy(update={"steps": (*a.steps, *b.steps), "zero": (*a.zero, *b.zero)})
        mutant = case.but(phases=(*phases[:p], merged, *phases[p + 2 :])).with_kinds(dict.fromkeys(_sole_barrier(case, p), "same_block"))
        if mutant.races():
            yield mutant


# -- claims ------------------------------------------------------------------------------------------------------


@breaks(
    "d",
    "the claimed kind is not there: no tagged buffer exists, no wait, no barrier between, or words cross blocks",
)
def edge_kind_lies(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    at = case.at()
    waits = any(s.waits for _, _, s, _ in case.sites())
    for edge in pick(rng, list(case.plan.edges), count):
        false = ["tag"] + (["flag"] if not waits else [])
        false += ["barrier"] if not case.barrier_between(at[edge.producer][0], at[edge.consumer][0]) else []
        false += ["same_block"] if case.crosses(edge) else []
        yield case.with_kinds({edge: rng.choice(false)})


@breaks("d", "an edge of the graph has no sync")
def edge_missing(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for edge in pick(rng, list(case.plan.edges), count):
        yield case.but(edges=tuple(e for e in case.plan.edges if e != edge))


@breaks("d", "a sync for an edge that the graph does not have")
def edge_invented(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    for edge in pick(rng, list(case.plan.edges), count):
        yield case.but(
            edges=(
                *case.plan.edges,
                edge.model_copy(update={"producer": edge.consumer, "consumer": edge.producer}),
            )
        )
