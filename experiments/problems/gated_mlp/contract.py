"""The forward contract: a solution's `Model(rows, d, f)` with `forward(x) -> y`. Runs in the solution's own process."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .definition import Dims


class Forward:
    """A solution's model as the judge's child calls it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def bind(self, state: Mapping[str, Tensor], position: int) -> None:
        """There is no state."""

    def call(self, inputs: Mapping[str, Tensor], bound: None, position: int) -> tuple[dict[str, Tensor], None]:
        """One application; a tuple of one tensor counts as the tensor. Raises ValueError for anything else."""
        made = self._model(inputs["x"])
        if isinstance(made, tuple) and len(made) == 1:
            made = made[0]
        if not isinstance(made, Tensor):
            what = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
            raise ValueError(f"Model.forward(x) returned {what}: return y, a tensor, or a tuple that holds only y")
        return {"y": made}, None

    def unbind(self, bound: None) -> dict[str, Tensor]:
        """There is no state."""
        return {}


def build(module: ModuleType, dims: Dims, weights: Mapping[str, Tensor], device: torch.device) -> Forward:
    """The solution's model with these weights on the device. Raises ValueError if the module has no such model, or one of other weights."""
    if not hasattr(module, "Model"):
        raise ValueError("solution.py defines no class Model: the forward contract is Model(rows, d, f).forward(x)")
    model = module.Model(dims.rows, dims.d, dims.f)
    if not isinstance(model, nn.Module):
        raise ValueError("Model is no torch.nn.Module, so no weights can be loaded into it")
    if getattr(model.forward, "__func__", None) is nn.Module.forward:  # a forward that was set on the instance will do
        raise ValueError("Model has no method forward(x)")
    model = model.to(device).eval()
    try:
        model.load_state_dict(dict(weights), strict=True)
    except RuntimeError as error:
        raise ValueError(
            f"the weights do not fit the Model: its state_dict must have the names and shapes {_shapes(weights)}: {error}"
        ) from error
    return Forward(model)


def _shapes(weights: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in weights.items())
