"""The public step contract: a solution's `Model(cfg)` with `step(hidden, state) -> (hidden, state)`, one dict of state per block.

This runs in the solution's own process and holds nothing that the solution may not know. Field names of the configuration and
of the state are those of the public benchmark, so that its solutions are judged as they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .definition import CONV_TAPS, Dims

State = list[dict[str, Tensor]]
STATES = {"kda": ("S", "cq", "ck", "cv"), "mla": ("c_kv", "k_rope")}
GROWING = STATES["mla"]


@dataclass(frozen=True)
class Config:
    """The sizes under their public names."""

    hidden: int
    kda_heads: int
    kda_head_dim: int
    mla_heads: int
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v_head: int
    rope_theta: float
    n_experts: int
    n_active: int
    moe_inter: int
    routed_scaling: float
    group: int
    pattern: tuple[str, ...]
    n_shared: int = 1
    short_conv: int = CONV_TAPS
    dtype: torch.dtype = field(default=torch.bfloat16)


def config(dims: Dims) -> Config:
    """The public configuration of these sizes."""
    return Config(
        hidden=dims.hidden, kda_heads=dims.heads, kda_head_dim=dims.head_dim, mla_heads=dims.heads, kv_lora=dims.kv_lora, qk_nope=dims.nope,
        qk_rope=dims.rope, v_head=dims.v_dim, rope_theta=dims.theta, n_experts=dims.experts, n_active=dims.top_k, moe_inter=dims.ffn,
        routed_scaling=dims.route_scale, group=dims.group, pattern=tuple("K" if kind == "kda" else "M" for kind in dims.layers),
    )  # fmt: skip


def public_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in their public shapes: the one shared expert has an axis of experts too."""
    return {name: tensor[None] if ".moe.s_" in name else tensor for name, tensor in weights.items()}


class Stepper:
    """A solution's model as the judge's child calls it."""

    def __init__(self, model: Any, dims: Dims) -> None:
        self._model, self._dims = model, dims

    def bind(self, state: Mapping[str, Tensor], position: int) -> State:
        """Public form of a flat state: caches hold exactly the `position` rows that are filled, in memory of their own."""
        bound: State = []
        for i, kind in enumerate(self._dims.layers):
            own = {name: state[f"blocks.{i}.{name}"] for name in STATES[kind]}
            bound.append({name: t[:position].clone() if name in GROWING else t for name, t in own.items()})
        return bound

    def call(self, inputs: Mapping[str, Tensor], bound: State, position: int) -> tuple[dict[str, Tensor], State]:
        """One step."""
        hidden, bound = self._model.step(inputs["token"], bound)
        return {"hidden": hidden}, bound

    def unbind(self, bound: State) -> dict[str, Tensor]:
        """The flat state again."""
        return {f"blocks.{i}.{name}": bound[i][name] for i, kind in enumerate(self._dims.layers) for name in STATES[kind]}


def build(module: ModuleType, dims: Dims, weights: Mapping[str, Tensor], device: torch.device) -> Stepper:
    """The solution's model with these weights on the device. Raises ValueError if the module has no such model."""
    if not dims.moe:
        raise ValueError("the public contract knows only blocks with experts: choose another size")
    if not hasattr(module, "Model"):
        raise ValueError("solution.py defines no class Model: the step contract is Model(cfg).step(hidden, state) -> (hidden, state)")
    model = module.Model(config(dims)).to(device).eval()
    if not callable(getattr(model, "step", None)):
        raise ValueError("Model has no method step(hidden, state)")
    model.load_state_dict(public_weights(weights), strict=True)
    return Stepper(model, dims)
