"""Whether the problem itself can be judged: empty answers must fail it, and the input and every weight must matter."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .definition import Dims
from .probes import probe_overlays
from .reference import Truth
from .tolerance import ELEMENT_FACTOR, RMS_FACTOR, Case, Check, Outcome, case_errors, prepare_check

Answer = Callable[[Check, Case], Tensor]
SEEDS = 2


@dataclass(frozen=True)
class AdmissionResult:
    """One demand on the problem: whether it holds, and where the crippled answer showed (or that it did not)."""

    name: str
    holds: bool
    seen_at: str


def build_checks(dims: Dims, weights: Mapping[str, Tensor], secret: int) -> list[Check]:
    """Checks of the ordinary weights and of every probe, on fresh seeds."""
    overlays = {"ordinary": {}, **probe_overlays(dims, weights, secret)}
    return [
        prepare_check(name, dims, weights, overlay, [secrets.randbits(40) for _ in range(SEEDS)], 0) for name, overlay in overlays.items()
    ]


def first_sighting(checks: list[Check], answer: Answer) -> str:
    """Where the first check rejects `answer` ("probe: error"), or an empty string if none does."""
    for check in checks:
        bound = check.bounds["y"]
        for case in check.cases:
            error = case_errors(case, Outcome(answer(check, case)))["y"]
            if not (error.relative <= RMS_FACTOR * bound.worst and error.element <= ELEMENT_FACTOR * bound.element):
                return f"{check.name}: relative error {error.relative:.3g}, allowed {RMS_FACTOR * bound.worst:.3g}"
    return ""


def admit(dims: Dims, weights: Mapping[str, Tensor], secret: int) -> list[AdmissionResult]:
    """All demands on the problem."""
    checks = build_checks(dims, weights, secret)

    def junk(check: Check, case: Case) -> Tensor:
        draw = torch.randn(case.expected.y.shape, generator=torch.Generator().manual_seed(case.seed), dtype=torch.float64)
        return draw * case.expected.y.double().square().mean(-1, keepdim=True).sqrt()

    def without(name: str, change: Callable[[Tensor], Tensor]) -> Answer:
        return lambda check, case: Truth(dims, {**check.weights, name: change(check.weights[name])})(case.inputs["x"])

    answers: dict[str, Answer] = {
        "zeros fail": lambda check, case: torch.zeros_like(case.expected.y),
        "a constant fails": lambda check, case: case.expected.y.mean().expand(case.expected.y.shape),
        "the identity fails": lambda check, case: case.inputs["x"],
        "plausible junk fails": junk,
        "x matters": lambda check, case: Truth(dims, check.weights)(torch.zeros_like(case.inputs["x"])),
    }
    answers |= {f"{name} matters": without(name, torch.zeros_like) for name in weights}
    answers |= {f"the order in {name} matters": without(name, lambda t: t.roll(1, 0)) for name in weights}
    found = [(name, first_sighting(checks, answer)) for name, answer in answers.items()]
    return [AdmissionResult(name, bool(seen), seen or "no probe shows it") for name, seen in found]
