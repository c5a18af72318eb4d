"""Sizes, weights and inputs.

Names of weights are the state_dict names of the public contract: `Model(rows, d, f)` with `norm.weight` [d], `gate.weight` and
`up.weight` [f, d], `down.weight` [d, f], all bf16, and `forward(x)` from bf16 [rows, d] to bf16 [rows, d].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6
NORM_STD = 0.2
DOWN_SHARE = 0.5  # standard deviation that the block adds to a residual of 1: a chain of 60 steps grows by less than ten times


@dataclass(frozen=True)
class Dims:
    """Tokens, width of the residual and of the hidden layer. `context` is there for problems with a state; here it is 0."""

    rows: int
    d: int
    f: int
    context: int = 0


SIZES = {"tiny": Dims(4, 256, 512), "small": Dims(4, 1024, 2816), "large": Dims(4, 4096, 11008)}


def make_weights(dims: Dims, seed: int) -> dict[str, Tensor]:
    """Gate and up give outputs of about 1, down brings them to DOWN_SHARE."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> Tensor:
        return (torch.randn(shape, generator=g) * std).bfloat16()

    return {
        "norm.weight": (1 + NORM_STD * torch.randn(dims.d, generator=g)).bfloat16(),
        "gate.weight": normal(dims.f, dims.d, std=dims.d**-0.5),
        "up.weight": normal(dims.f, dims.d, std=dims.d**-0.5),
        "down.weight": normal(dims.d, dims.f, std=DOWN_SHARE * 1.7 * dims.f**-0.5),  # silu(gate) * up has a deviation of 0.6
    }


def make_input(dims: Dims, seed: int, kind: str = "ordinary") -> Tensor:
    """bf16 [rows, d] of one of the distributions of `probes.INPUTS`; every row has a size of its own, 0.3 to 3."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(dims.rows, dims.d, generator=g)
    x *= torch.exp(torch.empty(dims.rows, 1).uniform_(-1.2, 1.1, generator=g))
    if kind == "scaled_up":
        x *= 8
    elif kind == "scaled_down":
        x /= 512  # its mean square is near EPS
    elif kind == "shifted":
        x += 5
    elif kind == "odd_rows":  # constant; zero but for one element; a few large elements; all zero: which is which, the seed says
        odd = torch.zeros(4, dims.d)
        odd[0] = 0.75
        odd[1, int(torch.randint(dims.d, (1,), generator=g))] = 3
        odd[2] = torch.randn(dims.d, generator=g) * (torch.rand(dims.d, generator=g) < 0.02) * 6
        which = torch.randperm(dims.rows, generator=g)[:4]
        x[which] = odd[: len(which)]
    elif kind == "mixed_sizes":  # a factor of a million between the smallest row and the largest
        size = torch.logspace(-3, 3, dims.rows)[torch.randperm(dims.rows, generator=g)]
        x *= (size / x.square().mean(dim=1).sqrt())[:, None]
    elif kind == "sorted":
        x = x.sort(dim=1).values
    return x.bfloat16()
