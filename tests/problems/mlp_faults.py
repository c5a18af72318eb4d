"""Faulty blocks: the mathematics of gated_mlp in float64 with one thing wrong, to prove that the probes show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from experiments.problems.gated_mlp.definition import EPS, Dims

Weights = dict[str, Tensor]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@dataclass(frozen=True)
class Block:
    """Every part of the block that a fault can replace; as it stands, it is right."""

    weights: Callable[[Weights], Weights] = field(default=lambda w: w)
    norm: Callable[[Tensor], Tensor] = field(default=lambda x: rms(x, EPS))
    silu: Callable[[Tensor], Tensor] = functional.silu
    hidden: Callable[[Tensor], Tensor] = _same
    added: Callable[[Tensor], Tensor] = _same
    residual: Callable[[Tensor], Tensor] = _same

    def run(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """y float64 [rows, d]."""
        w = {name: tensor.double() for name, tensor in self.weights(dict(weights)).items()}
        x = x.double()
        n = self.norm(x) * w["norm.weight"]
        hidden = self.hidden(self.silu(n @ w["gate.weight"].T) * (n @ w["up.weight"].T))
        return self.residual(x) + self.added(hidden @ w["down.weight"].T)


def _zeroed(axis: int, begin: int, end: int) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        made = tensor.clone()
        made.narrow(axis, begin, end - begin).zero_()
        return made

    return change


def _weight(name: str, change: Callable[[Tensor], Tensor]) -> Block:
    return Block(weights=lambda w: {**w, name: change(w[name])})


def _fp8(tensor: Tensor) -> Tensor:
    """Rounded to e4m3 with one scale per output row: the most careful of the usual ways."""
    wide = tensor.double()
    scale = (wide.abs().amax(dim=-1, keepdim=True) / 448).clamp_min(1e-12)
    return (wide / scale).float().to(torch.float8_e4m3fn).double() * scale


def _swapped(w: Weights) -> Weights:
    return {**w, "gate.weight": w["up.weight"], "up.weight": w["gate.weight"]}


def _centred(x: Tensor) -> Tensor:
    return rms(x - x.mean(-1, keepdim=True), EPS)


def _stale(tensor: Tensor) -> Tensor:
    return tensor[:1].expand_as(tensor)


def all_faults(dims: Dims) -> dict[str, Block]:
    """Faults by what is wrong. Slices and columns are left out at the beginning, in the middle and at the end."""
    right = Block()
    faults = {
        "norm weight ignored": _weight("norm.weight", torch.ones_like),
        "eps 100 times too large": replace(right, norm=lambda x: rms(x, 100 * EPS)),
        "eps 100 times too small": replace(right, norm=lambda x: rms(x, EPS / 100)),
        "mean subtracted as in a layer norm": replace(right, norm=_centred),
        "no norm": replace(right, norm=_same),
        "relu for silu": replace(right, silu=functional.relu),
        "gelu for silu": replace(right, silu=functional.gelu),
        "gate and up swapped": Block(weights=_swapped),
        "residual missing": replace(right, residual=torch.zeros_like),
        "residual of the normed x": replace(right, residual=lambda x: rms(x, EPS)),
        "residual clipped at 16": replace(right, residual=lambda x: x.clamp(-16, 16)),
        "every row takes the block of the first": replace(right, added=_stale),
        "all weights in fp8": Block(weights=lambda w: {k: t if k == "norm.weight" else _fp8(t) for k, t in w.items()}),
    }
    faults |= {f"{name} in fp8": _weight(f"{name}.weight", _fp8) for name in ("gate", "up", "down")}
    for row in range(dims.rows):
        faults[f"block of row {row} left out"] = replace(right, added=_zeroed(0, row, row + 1))
    for place, share in (("first", 0.0), ("middle", 0.5), ("last", 1.0)):
        for name in ("gate", "up"):
            at, tile = int(share * (dims.d - 1)), int(share * (dims.d - dims.d // 16))
            faults[f"{place} column of {name} left out"] = _weight(f"{name}.weight", _zeroed(1, at, at + 1))
            faults[f"{place} slice of {name} left out"] = _weight(f"{name}.weight", _zeroed(1, tile, tile + dims.d // 16))
        at, tile = int(share * (dims.f - 1)), int(share * (dims.f - dims.f // 16))
        faults[f"{place} hidden unit left out"] = replace(right, hidden=_zeroed(1, at, at + 1))
        faults[f"{place} slice of hidden units left out"] = replace(right, hidden=_zeroed(1, tile, tile + dims.f // 16))
        at = int(share * (dims.d - 1))
        faults[f"{place} output column without the block"] = replace(right, added=_zeroed(1, at, at + 1))
    return faults
