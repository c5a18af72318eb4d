"""The forward contract: a solution's `Model(rows, d, f)` with `forward(x) -> y`. Runs in the solution's own process."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .definition import Dims


class Forward:
    """A solution's model as the judge's child calls it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def bind(self, state: Mapping[str, Tensor], position: int) -> None:
        """There is no state."""

    def call(self, inputs: Mapping[str, Tensor], bound: None, position: int) -> tuple[dict[str, Tensor], None]:
        """One application; a tuple of one tensor counts as the tensor."""
        made = self._model(inputs["x"])
        if isinstance(made, tuple):
            (made,) = made
        return {"y": made}, None

    def unbind(self, bound: None) -> dict[str, Tensor]:
        """There is no state."""
        return {}


def build(module: ModuleType, dims: Dims, weights: Mapping[str, Tensor], device: torch.device) -> Forward:
    """The solution's model with these weights on the device. Raises ValueError if the module has no such model."""
    if not hasattr(module, "Model"):
        raise ValueError("solution.py defines no class Model: the forward contract is Model(rows, d, f).forward(x)")
    model = module.Model(dims.rows, dims.d, dims.f).to(device).eval()
    if not callable(getattr(model, "forward", None)):
        raise ValueError("Model has no method forward(x)")
    model.load_state_dict(dict(weights), strict=True)
    return Forward(model)
