"""The block in PyTorch as one would write it in bf16: the honest yardstick."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from .definition import EPS, Dims


class Baseline:
    """Rounds to bf16 after the norm, after each product and after the sum."""

    def __init__(self, dims: Dims, weights: Mapping[str, Tensor]) -> None:
        self._w = dict(weights)

    def call(self, inputs: Mapping[str, Tensor], state: dict[str, Tensor], position: int) -> dict[str, Tensor]:
        """{"y": bf16 [rows, d]} of {"x": bf16 [rows, d]}."""
        w = self._w
        x = inputs["x"].to(w["norm.weight"].device)
        wide = x.float()
        n = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w["norm.weight"].float()).bfloat16()
        act = functional.silu(functional.linear(n, w["gate.weight"])) * functional.linear(n, w["up.weight"])
        return {"y": x + functional.linear(act, w["down.weight"])}
