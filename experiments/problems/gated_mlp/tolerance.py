"""How far a right answer may lie from the truth, measured on the honest bf16 baseline on the same cases.

Relative RMS error at most twice the baseline's, median and worst, and the largest element error at most four times its worst: per
row, so that a small row is not hidden by a large one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .baseline import Baseline
from .definition import Dims, make_input
from .reference import Truth

RMS_FACTOR = 2.0
ELEMENT_FACTOR = 4.0
FLOORS = {"bf16": 2.0**-9}  # what one rounding costs: no bound is set below it


class TensorError(NamedTuple):
    """Relative RMS error of the worst row, and the largest element error over the RMS of its row."""

    relative: float
    element: float


class Bound(NamedTuple):
    """The baseline's errors over all seeds: median and worst relative RMS, worst element."""

    median: float
    worst: float
    element: float


@dataclass(frozen=True)
class Outcome:
    """The output of the last step."""

    y: Tensor


@dataclass(frozen=True)
class Case:
    """One drawn input and the truth after `steps` applications of the block."""

    inputs: dict[str, Tensor]
    state: dict[str, Tensor]
    position: int
    steps: int
    seed: int
    expected: Outcome


@dataclass(frozen=True)
class Check:
    """The cases under one set of weights, with their truth and bounds."""

    name: str
    weights: dict[str, Tensor]
    cases: tuple[Case, ...]
    bounds: dict[str, Bound]


def tensor_error(expected: Tensor, actual: Tensor) -> TensorError:
    """Errors of the worst row; infinite if anything is not finite."""
    want = expected.double()
    got = actual.to(want)
    if got.shape != want.shape or not bool(torch.isfinite(got).all()):
        return TensorError(float("inf"), float("inf"))
    rms = want.square().mean(-1).sqrt().clamp_min(1e-30)
    wrong = got - want
    return TensorError(float((wrong.square().mean(-1).sqrt() / rms).max()), float((wrong.abs().amax(-1) / rms).max()))


def chain_truth(truth: Truth, x: Tensor, steps: int) -> Tensor:
    """The block applied so many times, unrounded."""
    for _ in range(steps):
        x = truth(x)
    return x


def prepare_check(name: str, dims: Dims, weights: Mapping[str, Tensor], overlay: Mapping[str, Tensor], seeds: Iterable[int], context: int,
                  steps: int = 1) -> Check:  # fmt: skip
    """Draw the cases of `seeds` (x as `name` says) under the overlaid weights, and calibrate on them."""
    patched = {**weights, **overlay}
    truth, baseline = Truth(dims, patched), Baseline(dims, patched)
    cases, errors = [], []
    for seed in seeds:
        x = make_input(dims, seed, name)
        expected = Outcome(chain_truth(truth, x, steps).cpu())
        cases.append(Case({"x": x}, {}, context, steps, seed, expected))
        rough = x
        for _ in range(steps):
            rough = baseline.call({"x": rough}, {}, 0)["y"]
        errors.append(tensor_error(expected.y, rough))
    floor, relative = FLOORS["bf16"], [e.relative for e in errors]
    bound = Bound(max(statistics.median(relative), floor), max(*relative, floor), max(*(e.element for e in errors), floor))
    return Check(name, patched, tuple(cases), {"y": bound})


def case_errors(case: Case, actual: Outcome) -> dict[str, TensorError]:
    """Errors of the output."""
    return {"y": tensor_error(case.expected.y, actual.y)}


def structure_faults(dims: Dims, case: Case, actual: Outcome) -> list[str]:
    """Wrong dtype or shape."""
    if actual.y.dtype != torch.bfloat16 or tuple(actual.y.shape) != (dims.rows, dims.d):
        return [f"y is {actual.y.dtype} {tuple(actual.y.shape)}, expected bfloat16 {(dims.rows, dims.d)}"]
    return []


def copy_faults(case: Case, actual: Outcome) -> list[str]:
    """Nothing in this problem is only copied."""
    return []
