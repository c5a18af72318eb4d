"""Inputs and weights under which faults that ordinary ones hide become visible.

Input probes overlay nothing: they draw x from another distribution (`definition.make_input`), because a kernel may have been written
for one. Weight probes make one part of the block dominate.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .definition import Dims

INPUTS = ("scaled_up", "scaled_down", "shifted", "odd_rows", "mixed_sizes", "sorted")
GATE_FACTOR, DOWN_FACTOR = 4.0, 16.0
BLOCK_SHARE = 8  # of the columns of up, one part in so many is zeroed


def probe_overlays(dims: Dims, weights: Mapping[str, Tensor], secret: int) -> dict[str, dict[str, Tensor]]:
    """Overlay by probe: saturated gates; a block that dominates the residual; one secret hidden unit or column that dominates; a
    secret block of up's columns that is zero."""
    g = torch.Generator().manual_seed(secret)
    unit, column = (int(torch.randint(n, (1,), generator=g)) for n in (dims.f, dims.d))
    one_unit, one_column = weights["down.weight"].float(), weights["up.weight"].float()
    one_unit[:, unit] *= 4 * dims.f**0.5
    one_column[:, column] *= 2 * dims.d**0.5
    width = dims.d // BLOCK_SHARE
    begin = int(torch.randint(dims.d - width + 1, (1,), generator=g))
    without_block = weights["up.weight"].clone()
    without_block[:, begin : begin + width] = 0
    return {name: {} for name in INPUTS} | {
        "gates_saturated": {"gate.weight": (weights["gate.weight"].float() * GATE_FACTOR).bfloat16()},
        "block_dominates": {"down.weight": (weights["down.weight"].float() * DOWN_FACTOR).bfloat16()},
        "one_unit": {"down.weight": one_unit.bfloat16()},
        "one_column": {"up.weight": one_column.bfloat16()},
        "up_block_zero": {"up.weight": without_block},
    }
