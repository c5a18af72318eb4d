"""Faulty steps: the truth with one thing wrong, to prove that the probes show it.

A fault is a function from (node, its inputs, the states before it, its true results) to wrong results, so nothing
but the fault differs from the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from experiments.problems.kimi_linear_decode.definition import WINDOWS, Dims
from experiments.problems.kimi_linear_decode.nodes import Edges, NodeMath, NodeSpec, rotate_pairs
from experiments.problems.kimi_linear_decode.reference import Truth

Fault = Callable[["FaultyMath", NodeSpec, Mapping[str, Tensor], Mapping[str, Tensor], int, Edges], Edges]


class FaultyMath(NodeMath):
    """Node mathematics with a fault applied to every node's results."""

    fault: Fault

    def run(self, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int) -> Edges:
        made = self.true_run(spec, inputs, state, position)
        return self.fault(self, spec, inputs, state, position, dict(made))

    def true_run(self, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int) -> Edges:
        return super().run(spec, inputs, state, position)


def faulty(dims: Dims, weights: Mapping[str, Tensor], fault: Fault) -> Truth:
    truth = Truth(dims, weights, torch.float64, cache_bytes=0)
    math = FaultyMath(dims, weights, torch.float64)
    math.fault = fault
    truth.math = math
    return truth


def _edges(
    kind: str, change: Callable[[FaultyMath, Edges, Mapping[str, Tensor], int], Edges], layers: tuple[int, ...] | None = None
) -> Fault:
    """A fault of one kind of node that needs no state: local results and inputs in, changed results out."""

    def fault(
        math: FaultyMath, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int, made: Edges
    ) -> Edges:
        if spec.kind != kind or (layers is not None and spec.layer not in layers):
            return made
        own = f"L{spec.layer}."
        return made | {own + k: t for k, t in change(math, {**_local(made, own)}, _local(inputs, own), position).items()}

    return fault


def _local(edges: Mapping[str, Tensor], own: str) -> dict[str, Tensor]:
    return {name.removeprefix(own): t for name, t in edges.items() if name.startswith(own)}


def attention_zero(layer: int) -> Fault:
    return _edges("o_proj", lambda m, made, inputs, p: {"y": torch.zeros_like(made["y"])}, (layer,))


def conv_skipped(
    math: FaultyMath, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int, made: Edges
) -> Edges:
    """SiLU of the projections, without the convolution."""
    if spec.kind == "conv":
        made[f"L{spec.layer}.qkv"] = functional.silu(inputs[f"L{spec.layer}.qkvg"][:, :3])
    return made


def conv_sees_only_new(
    math: FaultyMath, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int, made: Edges
) -> Edges:
    """The convolution over an empty window."""
    if spec.kind == "conv":
        empty = {**state, **{f"blocks.{spec.layer}.{w}": torch.zeros_like(state[f"blocks.{spec.layer}.{w}"]) for w in WINDOWS}}
        name = f"L{spec.layer}.qkv"
        made[name] = math.true_run(spec, inputs, empty, position)[name]
    return made


def window_not_shifted(window: str) -> Fault:
    def fault(
        math: FaultyMath, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int, made: Edges
    ) -> Edges:
        if spec.kind == "conv":
            name = f"blocks.{spec.layer}.{window}"
            made[name] = torch.cat((state[name][:-1].double(), made[name][-1:]))
        return made

    return fault


def stale_state_output(layers: tuple[int, ...]) -> Fault:
    """S is updated, but o is read from the S before the step."""

    def fault(
        math: FaultyMath, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int, made: Edges
    ) -> Edges:
        if spec.kind == "kda_state" and spec.layer in layers:
            q = inputs[f"L{spec.layer}.qkv"][:, 0] * math.dims.head_dim**-0.5
            made[f"L{spec.layer}.o"] = torch.einsum("hkv,hk->hv", state[f"blocks.{spec.layer}.S"].double(), q)
        return made

    return fault


def state_not_written(layers: tuple[int, ...]) -> Fault:
    def fault(
        math: FaultyMath, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int, made: Edges
    ) -> Edges:
        if spec.kind == "kda_state" and spec.layer in layers:
            made[f"blocks.{spec.layer}.S"] = state[f"blocks.{spec.layer}.S"]
        return made

    return fault


def _kda_with(change: Callable[[Edges], Edges]) -> Fault:
    """The KDA update run on changed inputs (qkvg, qkv, beta)."""

    def fault(
        math: FaultyMath, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int, made: Edges
    ) -> Edges:
        if spec.kind != "kda_state":
            return made
        own = f"L{spec.layer}."
        changed = {own + k: t for k, t in change(_local(inputs, own)).items()}
        return math.true_run(spec, {**inputs, **changed}, state, position)

    return fault


def _gate_zero(e: Edges) -> Edges:
    gates = e["qkvg"].clone()
    gates[:, 3] = -40.0
    return {"qkvg": gates}


def skipped_row(which: float) -> Fault:
    """Attention that leaves out one row: 0 the first, 0.5 the middle one, 1 the newest cached one, 2 the new row."""

    def fault(
        math: FaultyMath, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int, made: Edges
    ) -> Edges:
        if spec.kind != "attend":
            return made
        e, block = _local(inputs, f"L{spec.layer}."), f"blocks.{spec.layer}."
        rows = torch.cat((state[f"{block}c_kv"][:position].double(), e["latent"][None]))
        keys = torch.cat((state[f"{block}k_rope"][:position].double(), e["kr"][None]))
        left_out = position if which == 2 else round(which * (position - 1))
        kept = [j for j in range(position + 1) if j != left_out]
        rows, keys = rows[kept], keys[kept]
        scores = (e["qa"] @ rows.T + e["qr"] @ keys.T) * math.dims.q_dim**-0.5
        made[f"L{spec.layer}.ctx"] = torch.softmax(scores, dim=-1) @ rows
        return made

    return fault


def _unnormalised(math: FaultyMath, made: Edges, inputs: Mapping[str, Tensor], position: int) -> Edges:
    p = torch.softmax(inputs["logits"], dim=-1)
    return {"w": p[made["ids"].long()] * math.dims.route_scale}


def _first_and_last_swapped(math: FaultyMath, made: Edges, inputs: Mapping[str, Tensor], position: int) -> Edges:
    w = made["w"].clone()
    w[0], w[-1] = made["w"][-1], made["w"][0]
    return {"w": w}


def residual_lost(edge: str, layer: int) -> Fault:
    """One term of a residual sum is left out where it is next needed."""

    def fault(
        math: FaultyMath, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int, made: Edges
    ) -> Edges:
        name = f"L{layer}.{edge}"
        if name not in inputs or spec.kind not in ("attn_norm", "moe_norm", "emit"):
            return made
        return math.true_run(spec, {**inputs, name: torch.zeros_like(inputs[name])}, state, position)

    return fault


def _query_unrotated(math: FaultyMath, made: Edges, inputs: Mapping[str, Tensor], position: int) -> Edges:
    return {"qr": inputs["q"][:, math.dims.nope :]}


def _one_position_late(math: FaultyMath, made: Edges, inputs: Mapping[str, Tensor], position: int) -> Edges:
    return {"qr": rotate_pairs(inputs["q"][:, math.dims.nope :], position + 1, math.dims.theta)}


def all_faults(dims: Dims) -> dict[str, Fault]:
    """Every fault that some probe must show, by name."""
    layers = range(len(dims.layers))
    faults: dict[str, Fault] = {f"attention output zero in block {i}": attention_zero(i) for i in layers}
    for i in layers:
        for edge in ("h", "h2", "y", "yr", "ys"):
            faults[f"residual term {edge} of block {i} lost"] = residual_lost(edge, i)
        faults[f"shared expert dropped in block {i}"] = _edges(
            "s_down", lambda m, made, inputs, p: {"ys": torch.zeros_like(made["ys"])}, (i,)
        )
        faults[f"weights not normalised in block {i}"] = _edges("topk", _unnormalised, (i,))
        faults[f"two weights swapped in block {i}"] = _edges("topk", _first_and_last_swapped, (i,))
    for window in WINDOWS:
        faults[f"window {window} not shifted"] = window_not_shifted(window)
    for name, which in (("first", 0.0), ("middle", 0.5), ("newest cached", 1.0), ("new", 2.0)):
        faults[f"{name} row skipped"] = skipped_row(which)
    return faults | {
        "convolution skipped": conv_skipped,
        "window ignored": conv_sees_only_new,
        "o from a stale S in blocks 1 and 2": stale_state_output((1, 2)),
        "S not written in blocks 1 and 2": state_not_written((1, 2)),
        "beta ignored": _kda_with(lambda e: {"beta": torch.full_like(e["beta"], 40.0)}),
        "decay ignored": _kda_with(_gate_zero),
        "q and k swapped": _kda_with(lambda e: {"qkv": e["qkv"][:, [1, 0, 2]]}),
        "v taken from k": _kda_with(lambda e: {"qkv": e["qkv"][:, [0, 1, 1]]}),
        "new key not rotated": _edges("rope", lambda m, made, inputs, p: {"kr": inputs["kva"][m.dims.kv_lora :]}),
        "query not rotated": _edges("absorb", _query_unrotated),
        "query rotated one position late": _edges("absorb", _one_position_late),
        "rope part of the query dropped": _edges("absorb", lambda m, made, inputs, p: {"qr": torch.zeros_like(made["qr"])}),
        "nope part of the query dropped": _edges("absorb", lambda m, made, inputs, p: {"qa": torch.zeros_like(made["qa"])}),
    }
