"""Rewrites of plan specs: one step in the space of plans. They change where things run, never what is computed.

A *spec* is a plan file as a dict (agents/planner.py); a rewrite (memory/change.py) applies to every layer of its section and
never reaches over the end of one: between two sections there is always a barrier. Nothing here decides what is legal: `apply`
refuses only what makes no sense, the planner and the checker judge the rest (`is_legal`).

A phase is named by its name or by any stage that it runs, so that a rewrite found on one spec still means something on another
whose phases have other names. A flag belongs to a tensor name, in whichever sections have one: plan files say it so.

Where copies of added tensors are zeroed is derived, not chosen: at the start of the phase that adds. That is always legal,
because in specs every block has a copy of its own and zeroes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from agents.planner import chosen_split, expand, owners, sections
from memory.change import Rewrite
from sandbox.errors import PlanError
from sandbox.graph import Node, StageGraph
from sandbox.legality import Violation, check_plan
from sandbox.plan import Plan
from sandbox.records import content_hash

Spec = dict[str, Any]
PLACES = ("replicated", "contiguous", "round_robin", "block 0")


class Section:
    """The phases of one section of a spec, as a copy that may be changed, and the stages of one of its layers."""

    def __init__(self, spec: Spec, name: str, graph: StageGraph, blocks: int) -> None:
        layers = [layer for section, layer in sections(graph) if section == name]
        if not layers or name not in spec.get("phases", {}):
            known = sorted({s for s, _ in sections(graph)} & set(spec.get("phases", {})))
            raise PlanError(f"there is no section '{name}' to rewrite; spec and graph have {known}")
        self.name, self.graph, self.blocks, self.layer = name, graph, blocks, layers[0]
        self.phases: list[Spec] = [{**p, "steps": [dict(s) for s in p["steps"]]} for p in spec["phases"][name]]

    def node(self, stage: str) -> Node:
        """The graph's stage of that name, in the first layer of the section."""
        node = self.graph.by_name.get(stage) or self.graph.by_name.get(f"L{self.layer}.{stage}")
        if node is None:
            raise PlanError(f"{self.name}: the graph has no stage '{stage}' in layer {self.layer}")
        return node

    def phase(self, name: str) -> int:
        """Index of the phase of that name, or of the one that runs the stage of that name."""
        for i, phase in enumerate(self.phases):
            if phase["phase"] == name:
                return i
        for i, phase in enumerate(self.phases):
            if any(s["stage"] == name for s in phase["steps"]):
                return i
        raise PlanError(f"{self.name}: no phase '{name}' and none that runs a stage of that name; there are {self.names()}")

    def step(self, stage: str) -> tuple[int, int]:
        """(phase, position in it) of a stage."""
        for i, phase in enumerate(self.phases):
            for j, step in enumerate(phase["steps"]):
                if step["stage"] == stage:
                    return i, j
        raise PlanError(f"{self.name}: no phase runs a stage '{stage}'")

    def split(self, step: Spec) -> str:
        """The split a step uses, as the planner takes it."""
        return chosen_split(step.get("split", "whole"), self.node(step["stage"]), self.blocks)

    def dealt(self, step: Spec, place: str) -> tuple[int, ...] | str:
        """What a place means for a step: its owners, or `replicated`. Two places that mean the same are one."""
        node, split = self.node(step["stage"]), self.split(step)
        if split not in node.shardings:
            raise PlanError(f"{self.name}/{step['stage']}: no split '{split}'; the stage offers {sorted(node.shardings)}")
        if place == "replicated":
            return place
        where = f"{self.name}/{step['stage']}"
        try:
            return owners(place, node.shardings[split].items, self.blocks, where)
        except ValueError as error:
            raise PlanError(f"{where}: unknown place '{place}'; use one of {', '.join(PLACES)}") from error

    def names(self) -> list[str]:
        """Names of the phases, in order."""
        return [str(p["phase"]) for p in self.phases]

    def free(self, name: str, among: Sequence[str]) -> str:
        """That name, or with a number if another phase of the section has it."""
        taken = set(among)
        return next(n for n in (name, *(f"{name}.{k}" for k in range(2, 99))) if n not in taken)

    def tensors(self) -> dict[str, str]:
        """Short name of each tensor that a step of the section makes -> the stage that makes it."""
        made = {}
        for phase in self.phases:
            for step in phase["steps"]:
                for tensor in self.node(step["stage"]).outputs.values():
                    made[tensor.split(".", 1)[-1]] = step["stage"]
        return made

    def rezero(self) -> None:
        """Zero what is added at the start of the phase that adds it, and nothing else."""
        for phase in self.phases:
            added = []
            for step in phase["steps"]:
                node = self.node(step["stage"])
                sharding = node.shardings.get(self.split(step))
                if sharding is not None:
                    added += [t.split(".", 1)[-1] for p, t in node.outputs.items() if sharding.boxes[p].mode == "add"]
            phase.pop("zero", None)
            if added:
                phase["zero"] = added


def apply(spec: Spec, rewrite: Rewrite, graph: StageGraph, blocks: int) -> Spec:
    """The rewritten spec, a new dict. Raises PlanError, with a sentence, for a rewrite that makes no sense here."""
    section = Section(spec, rewrite.section, graph, blocks)
    flags = set(spec.get("flags", ()))
    if rewrite.kind == "join":
        _join(section, rewrite)
    elif rewrite.kind == "split_phase":
        _split_phase(section, rewrite)
    elif rewrite.kind == "move":
        _move(section, rewrite)
    elif rewrite.kind == "split":
        _split(section, rewrite)
    elif rewrite.kind == "place":
        _place(section, rewrite)
    elif rewrite.subject not in section.tensors():
        raise PlanError(f"{rewrite}: no stage of the section makes a tensor '{rewrite.subject}'")
    elif (rewrite.kind == "flag") == (rewrite.subject in flags):
        raise PlanError(f"{rewrite}: '{rewrite.subject}' is{'' if rewrite.kind == 'flag' else ' not'} flagged already")
    else:
        flags ^= {rewrite.subject}
    section.rezero()
    out = {**spec, "phases": {**spec["phases"], rewrite.section: section.phases}, "flags": sorted(flags)}
    if not flags:
        del out["flags"]
    return out


def apply_all(spec: Spec, rewrites: Iterable[Rewrite], graph: StageGraph, blocks: int) -> Spec:
    """The rewrites one after the other. Raises PlanError at the first that makes no sense."""
    for rewrite in rewrites:
        spec = apply(spec, rewrite, graph, blocks)
    return spec


def _join(section: Section, rewrite: Rewrite) -> None:
    at = section.phase(rewrite.subject)
    if at + 1 == len(section.phases):
        raise PlanError(f"{rewrite}: '{section.names()[at]}' is the last phase of its section; only neighbours inside one can be joined")
    first, second = section.phases[at], section.phases[at + 1]
    others = section.names()[:at] + section.names()[at + 2 :]
    name = f"{first['phase'].split('-')[0]}-{second['phase'].split('-')[-1]}"
    section.phases[at : at + 2] = [{"phase": section.free(name, others), "steps": first["steps"] + second["steps"]}]


def _split_phase(section: Section, rewrite: Rewrite) -> None:
    at = section.phase(rewrite.subject)
    phase = section.phases[at]
    stages = [s["stage"] for s in phase["steps"]]
    if rewrite.to not in stages[1:]:
        raise PlanError(f"{rewrite}: '{phase['phase']}' can only end before one of {stages[1:]}, the stages after its first")
    cut = stages.index(rewrite.to)
    others = section.names()[:at] + section.names()[at + 1 :]
    first = section.free(phase["phase"].split("-")[0], others)
    second = section.free(rewrite.to, [*others, first])
    section.phases[at : at + 1] = [{"phase": first, "steps": phase["steps"][:cut]}, {"phase": second, "steps": phase["steps"][cut:]}]


def _move(section: Section, rewrite: Rewrite) -> None:
    """Into another phase: after the producers that run there, before its consumers, and else where the graph lists it."""
    at, index = section.step(rewrite.subject)
    to = section.phase(rewrite.to)
    if at == to:
        raise PlanError(f"{rewrite}: '{rewrite.subject}' runs in that phase already")
    step = section.phases[at]["steps"].pop(index)
    order = {n.name: i for i, n in enumerate(section.graph.nodes)}
    node = section.node(rewrite.subject)
    there = [section.node(s["stage"]) for s in section.phases[to]["steps"]]
    feeds = [i + 1 for i, other in enumerate(there) if set(other.outputs.values()) & set(node.inputs.values())]
    low = max(feeds, default=0)
    place = next((i for i in range(low, len(there)) if order[there[i].name] > order[node.name]), len(there))
    section.phases[to]["steps"].insert(place, step)
    section.phases = [p for p in section.phases if p["steps"]]


def _split(section: Section, rewrite: Rewrite) -> None:
    at, index = section.step(rewrite.subject)
    step = section.phases[at]["steps"][index]
    known = section.node(rewrite.subject).shardings
    if rewrite.to not in known:
        raise PlanError(f"{rewrite}: no split '{rewrite.to}'; the stage offers {sorted(known)}")
    if section.split(step) == rewrite.to:
        raise PlanError(f"{rewrite}: that is its split already")
    step["split"] = rewrite.to


def _place(section: Section, rewrite: Rewrite) -> None:
    at, index = section.step(rewrite.subject)
    step = section.phases[at]["steps"][index]
    if section.dealt(step, rewrite.to) == section.dealt(step, step.get("place", "contiguous")):
        raise PlanError(f"{rewrite}: that is where it runs already")
    step["place"] = rewrite.to


def neighbours(spec: Spec, graph: StageGraph, blocks: int) -> list[Rewrite]:
    """Every rewrite that changes the spec, in a fixed order, none twice in effect; legal or not.

    A flag is offered where a stage of the same phase reads the tensor (elsewhere a barrier orders it anyway), a move to the
    phase before or after, and not of a phase's only stage (that is a join). Places that mean the same owners are offered once."""
    found: dict[str, Rewrite] = {}
    start = spec_id(spec)
    for name in dict.fromkeys(s for s, _ in sections(graph)):
        for rewrite in _offers(Section(spec, name, graph, blocks), set(spec.get("flags", ()))):
            key = spec_id(apply(spec, rewrite, graph, blocks))
            if key != start:
                found.setdefault(key, rewrite)
    return list(found.values())


def _offers(section: Section, flags: set[str]) -> Iterator[Rewrite]:
    name, names = section.name, section.names()
    for at, phase in enumerate(section.phases):
        steps = phase["steps"]
        if at + 1 < len(section.phases):
            yield Rewrite(kind="join", section=name, subject=names[at])
        for step in steps[1:]:
            yield Rewrite(kind="split_phase", section=name, subject=names[at], to=step["stage"])
        made: set[str] = set()
        for step in steps:
            node = section.node(step["stage"])
            for to in (at - 1, at + 1):
                if 0 <= to < len(section.phases) and len(steps) > 1:
                    yield Rewrite(kind="move", section=name, subject=step["stage"], to=names[to])
            for split in node.shardings:
                if split != section.split(step):
                    yield Rewrite(kind="split", section=name, subject=step["stage"], to=split)
            meant = {section.dealt(step, step.get("place", "contiguous"))}
            for place in PLACES:
                if section.dealt(step, place) not in meant:
                    meant.add(section.dealt(step, place))
                    yield Rewrite(kind="place", section=name, subject=step["stage"], to=place)
            read = [t.split(".", 1)[-1] for t in node.inputs.values() if t in made]
            yield from (Rewrite(kind="flag", section=name, subject=t) for t in read if t not in flags)
            if step.get("place", "contiguous") != "replicated":
                made |= set(node.outputs.values())
    yield from (Rewrite(kind="unflag", section=name, subject=t) for t in section.tensors() if t in flags)


def judge_spec(
    spec: Spec, graph: StageGraph, blocks: int, numerics: Mapping[str, Sequence[str]] | None = None, target: Literal["cpu", "cuda"] = "cpu"
) -> tuple[Plan, list[Violation]]:
    """The expanded plan and every rule it breaks. Raises PlanError for what the planner cannot expand.

    `numerics`: the roundings that each node's implementation drops (rule i)."""
    plan = expand(spec, graph, blocks, target)
    return plan, check_plan(plan, graph, numerics=numerics)


def is_legal(
    spec: Spec, graph: StageGraph, blocks: int, numerics: Mapping[str, Sequence[str]] | None = None, target: Literal["cpu", "cuda"] = "cpu"
) -> Plan | None:
    """The plan if planner and checker accept the spec, else None."""
    try:
        plan, broken = judge_spec(spec, graph, blocks, numerics, target)
    except PlanError:
        return None
    return None if broken else plan


def spec_id(spec: Spec) -> str:
    """Hash of what a spec means: phases with their steps in order, and flags. Names of plan and phases, the text about it, the
    dropped roundings and the derived zero lists are outside."""
    phases = {
        section: [[[s["stage"], s.get("split", "whole"), s.get("place", "contiguous")] for s in p["steps"]] for p in entries]
        for section, entries in spec["phases"].items()
    }
    return content_hash({"phases": phases, "flags": sorted(spec.get("flags", ()))})
