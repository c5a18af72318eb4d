"""What the judge asks of this problem: fresh starts, the form of the output, and the truth of a timed chain."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .baseline import Baseline
from .definition import Dims, make_input
from .reference import Truth
from .tolerance import FLOORS, RMS_FACTOR, Outcome, tensor_error


@dataclass(frozen=True)
class Start:
    """Where a chain begins."""

    inputs: dict[str, Tensor]
    state: dict[str, Tensor]


def outputs(dims: Dims) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """(dtype, shape) of every output of a step."""
    return {"y": (torch.bfloat16, (dims.rows, dims.d))}


def start(dims: Dims, context: int, seed: int, probe: str = "ordinary") -> Start:
    """A fresh x, drawn as the probe of that name draws it."""
    return Start({"x": make_input(dims, seed, probe)}, {})


def growing(name: str) -> bool:
    """There is no state."""
    return False


def short_context(dims: Dims) -> bool:
    """There is no context."""
    return False


def outcome(made: Mapping[str, Tensor], state: dict[str, Tensor]) -> Outcome:
    """The output as `tolerance.case_errors` takes it."""
    return Outcome(made["y"])


def verify_chain(dims: Dims, weights: Mapping[str, Tensor], begun: Start, position: int, made: Sequence[Mapping[str, Tensor]],
                 state: Mapping[str, Tensor] | None) -> tuple[str, int]:  # fmt: skip
    """Compare the outputs of a timed chain with the truth, along the candidate's own outputs: (what is wrong or "", steps compared).

    The median error over the steps must be at most twice the baseline's on the same steps, the worst at most four times its worst."""
    truth, baseline = Truth(dims, weights), Baseline(dims, weights)
    x, own, honest = begun.inputs["x"], [], []
    for i, step in enumerate(made):
        y = step["y"]
        if not bool(torch.isfinite(y).all()):
            return f"step {i} of a timed chain has outputs that are not finite", i
        exact = truth(x)
        own.append(tensor_error(exact, y).relative)
        honest.append(max(tensor_error(exact, baseline.call({"x": x}, {}, 0)["y"]).relative, FLOORS["bf16"]))
        x = y
    median, worst = RMS_FACTOR * statistics.median(honest), 2 * RMS_FACTOR * max(honest)
    if statistics.median(own) <= median and max(own) <= worst:
        return "", len(own)
    return (f"{len(own)} steps of a timed chain have relative errors of {statistics.median(own):.3g} (median) and {max(own):.3g} (worst); "
            f"allowed {median:.3g} and {worst:.3g}"), len(own)  # fmt: skip
