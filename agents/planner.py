"""Plan files -> Plans.

A plan file (YAML) says per kind of block which phases there are, which stages each phase runs, how each stage is split
and placed. Expanding it over the layers of a graph and a number of blocks gives the Plan that the checker enumerates.

    plan: fused
    phases:
      kda:                    # sections: kda, mla (attention half), moe, end
        - phase: kda
          zero: [y]
          steps:
            - {stage: attn_norm, split: whole, place: replicated}
            - {stage: qkvg, split: heads, place: contiguous}   # a list of splits: the first that divides over the blocks
    flags: [kva]              # tensors handed over by a flag inside their phase instead of a barrier

`place`: `replicated` (every block, into private buffers), `contiguous` (items dealt in equal runs), `round_robin`,
`block 0`. A missing stage or an unknown one is an error: nothing is placed silently.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml

from sandbox.errors import PlanError
from sandbox.graph import Node, StageGraph
from sandbox.plan import Buffer, EdgeSync, Phase, Plan, Step, SyncKind, Wait


def owners(place: str, items: int, blocks: int, where: str) -> tuple[int, ...]:
    """Block of each item under a placement."""
    if place == "contiguous":
        return tuple(i * blocks // items for i in range(items)) if items >= blocks else tuple(range(items))
    if place == "round_robin":
        return tuple(i % blocks for i in range(items))
    if place.startswith("block "):
        block = int(place.removeprefix("block "))
        if block >= blocks:
            raise PlanError(f"{where}: '{place}' but the plan has {blocks} blocks")
        return (block,) * items
    raise PlanError(f"{where}: unknown place '{place}'; use replicated, contiguous, round_robin or 'block N'")


def sections(graph: StageGraph) -> list[tuple[str, int]]:
    """The (section, layer) sequence of a graph of KDA, MLA and MoE half blocks, read off its nodes: kda | mla, then moe, and `end`."""
    out: list[tuple[str, int]] = []
    layers = sorted({n.layer for n in graph.nodes})
    names = set(graph.by_name)
    for i in layers:
        out.append(("kda" if f"L{i}.kda_state" in names else "mla", i))
        if f"L{i}.router" in names:
            out.append(("moe", i))
    out.append(("end", layers[-1]))
    return out


def load_plan(path: Path, graph: StageGraph, blocks: int, target: Literal["cpu", "cuda"] = "cpu") -> Plan:
    """Expand a plan file for a graph. Raises PlanError with the file and line of thought that is wrong."""
    return expand(read_plan(path), graph, blocks, target, source=path.name)


def read_plan(path: Path) -> dict[str, Any]:
    """A plan file as a dict. Raises PlanError if it is none."""
    try:
        spec = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise PlanError(f"{path.name}: this is no plan file: {error}") from error
    if not isinstance(spec, dict):
        raise PlanError(f"{path.name}: a plan file is a mapping with 'plan' and 'phases'")
    return spec


def expand(spec: dict[str, Any], graph: StageGraph, blocks: int, target: Literal["cpu", "cuda"], source: str = "plan") -> Plan:
    """Expand a parsed plan file. Raises PlanError for anything that is no plan."""
    try:
        return _expand(spec, graph, blocks, target, source)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PlanError(f"{source}: this is no plan file: {type(error).__name__}: {str(error)[:200]}") from error


def _expand(spec: dict[str, Any], graph: StageGraph, blocks: int, target: Literal["cpu", "cuda"], source: str) -> Plan:
    unknown = set(spec) - {"plan", "about", "phases", "flags", "dropped_roundings", "implementations"}
    if unknown:
        raise PlanError(f"{source}: unknown keys {sorted(unknown)}")
    flags = set(_names(spec, "flags", source))
    surplus = set(spec["phases"]) - {"kda", "mla", "moe", "end"}
    if surplus:
        raise PlanError(f"{source}: unknown sections {sorted(surplus)}; there are kda, mla, moe and end")
    phases: list[Phase] = []
    for section, layer in sections(graph):
        if section not in spec["phases"]:
            raise PlanError(f"{source}: the graph has a '{section}' section but the plan file says nothing about it")
        for entry in spec["phases"][section]:
            phases.append(_phase(entry, section, layer, graph, blocks, source))
    phases[-1] = phases[-1].model_copy(update={"barrier": False})
    placed = [s.node for p in phases for s in p.steps]
    missing = [n.name for n in graph.nodes if n.name not in placed]
    if missing or len(placed) != len(set(placed)):
        raise PlanError(f"{source}: stages not placed exactly once; missing {missing}, placed {len(placed)}")
    buffers = _buffers(phases, graph, blocks)
    phases = _add_flags(phases, graph, flags, blocks, source)
    return Plan(
        name=str(spec["plan"]), graph=graph.name, target=target, blocks=blocks, phases=tuple(phases), buffers=buffers,
        edges=_edges(phases, graph, flags), dropped_roundings=tuple(spec.get("dropped_roundings", ())),
    )  # fmt: skip


def _names(entry: dict[str, Any], key: str, where: str) -> list[str]:
    """A list of names under a key; a bare string would be taken letter by letter."""
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise PlanError(f"{where}: '{key}' must be a list of names, not {value!r}")
    return value


def _phase(entry: dict[str, Any], section: str, layer: int, graph: StageGraph, blocks: int, source: str) -> Phase:
    unknown = set(entry) - {"phase", "zero", "steps"}
    if unknown:
        raise PlanError(f"{source}: {section}/{entry.get('phase')}: unknown keys {sorted(unknown)}")
    if not re.fullmatch(r"\w[\w.-]*", str(entry.get("phase"))):
        raise PlanError(f"{source}: {section}: a phase needs a name of letters, digits, '_', '-' and '.', not {entry.get('phase')!r}")
    steps = []
    for s in entry["steps"]:
        if set(s) - {"stage", "split", "place"}:
            raise PlanError(
                f"{source}: {section}/{entry['phase']}/{s.get('stage')}: unknown keys {sorted(set(s) - {'stage', 'split', 'place'})}"
            )
        name = s["stage"] if s["stage"] in graph.by_name else f"L{layer}.{s['stage']}"
        where = f"{source}: {section}/{entry['phase']}/{s['stage']}"
        if name not in graph.by_name:
            raise PlanError(f"{where}: the graph has no stage '{name}'")
        node = graph.by_name[name]
        split = chosen_split(s.get("split", "whole"), node, blocks)
        if split not in node.shardings:
            raise PlanError(f"{where}: no split '{split}'; the stage offers {sorted(node.shardings)}")
        place = s.get("place", "contiguous")
        if place == "replicated":
            steps.append(Step(node=name, sharding=split, replicated=True))
        else:
            steps.append(Step(node=name, sharding=split, owner=owners(place, node.shardings[split].items, blocks, where)))
    zero = tuple(f"L{layer}.{t}" for t in _names(entry, "zero", f"{source}: {section}/{entry['phase']}"))
    return Phase(name=f"{section}{layer}.{entry['phase']}" if section != "end" else entry["phase"], steps=tuple(steps), zero=zero)


def chosen_split(wanted: str | list[str], node: Node, blocks: int) -> str:
    """A plan file may list splits in order of preference: the first whose items divide over the blocks is taken, else the last."""
    if isinstance(wanted, str):
        return wanted
    fits = [s for s in wanted if s in node.shardings and node.shardings[s].items % blocks == 0]
    return (fits or wanted)[0 if fits else -1]


def _mode(node: Node, step: Step, tensor: str) -> str:
    port = next(p for p, t in node.outputs.items() if t == tensor)
    return node.shardings[step.sharding].boxes[port].mode


def _buffers(phases: list[Phase], graph: StageGraph, blocks: int) -> dict[str, Buffer]:
    buffers = {}
    for phase in phases:
        for step in phase.steps:
            node = graph.by_name[step.node]
            for tensor in node.outputs.values():
                if graph.tensors[tensor].role != "edge":
                    continue
                if _mode(node, step, tensor) == "add":
                    buffers[tensor] = Buffer(tensor=tensor, home="partial", storage=tensor, copies=blocks, copy_of=tuple(range(blocks)))
                else:
                    home: Literal["private", "shared"] = "private" if step.replicated else "shared"
                    buffers[tensor] = Buffer(tensor=tensor, home=home, storage=tensor)
    return buffers


def _add_flags(phases: list[Phase], graph: StageGraph, flags: set[str], blocks: int, source: str) -> list[Phase]:
    """Tensors named in `flags`: the producing step signals an event, every consuming step of the phase waits for it."""
    if not flags:
        return phases
    out = []
    for phase in phases:
        steps = []
        events: dict[str, Wait] = {}
        for step in phase.steps:
            node = graph.by_name[step.node]
            waits = tuple(events[t] for t in node.inputs.values() if t in events)
            signals = tuple(t for t in node.outputs.values() if t.split(".", 1)[-1] in flags)
            for t in signals:
                if step.replicated:
                    raise PlanError(f"{source}: '{t}' is replicated, so no flag is needed: take it out of flags")
                events[t] = Wait(event=t, count=len(set(step.owner)))
            steps.append(step.model_copy(update={"waits": waits, "signals": signals}))
        out.append(phase.model_copy(update={"steps": tuple(steps)}))
    return out


def _edges(phases: list[Phase], graph: StageGraph, flags: set[str]) -> tuple[EdgeSync, ...]:
    phase_of = {s.node: i for i, p in enumerate(phases) for s in p.steps}
    edges = []
    for node in graph.nodes:
        for tensor in node.inputs.values():
            producer = graph.producers.get(tensor)
            if producer is None:
                continue
            kind: SyncKind = "same_block"
            if phase_of[producer] != phase_of[node.name]:
                kind = "barrier"
            elif tensor.split(".", 1)[-1] in flags:
                kind = "flag"
            edges.append(EdgeSync(producer=producer, consumer=node.name, tensor=tensor, kind=kind))
    return tuple(edges)
