"""The truth: the unrounded mathematics in float64, or in float32 where weights are large."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .definition import EPS, Dims

FLOAT64_MAX_WIDTH = 2048


def truth_dtype(dims: Dims) -> torch.dtype:
    """float64 where it is affordable."""
    return torch.float64 if dims.d <= FLOAT64_MAX_WIDTH else torch.float32


class Truth:
    """y [rows, d] of x [rows, d] in the working dtype, on the device of the weights wherever x is."""

    def __init__(self, dims: Dims, weights: Mapping[str, Tensor]) -> None:
        self._w = {name: tensor.to(truth_dtype(dims)) for name, tensor in weights.items()}

    def __call__(self, x: Tensor) -> Tensor:
        w = self._w
        wide = x.to(w["norm.weight"])
        n = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w["norm.weight"]
        gate = n @ w["gate.weight"].T
        return wide + (gate * torch.sigmoid(gate) * (n @ w["up.weight"].T)) @ w["down.weight"].T
