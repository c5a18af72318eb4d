"""Whether the problem itself can be judged: empty answers must fail it, and every tensor must matter.

A task that a constant solves, or where whole inputs are without effect, would reward a kernel that computes
nothing. Everything here compares the truth with a crippled truth under the bounds of tolerance.py, on ordinary
weights and on every probe.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .definition import Dims, state_specs, weight_specs
from .probes import probe_overlays
from .reference import Truth
from .tolerance import Case, Check, Outcome, Step, case_errors, chain, prepare_check, truth_dtype, violations

EACH_WEIGHT_MAX_HIDDEN = 256  # above it, one truth per weight tensor takes too long
# One crippled answer to a case under a check's weights.
Answer = Callable[[Check, Case], Outcome]


@dataclass(frozen=True)
class AdmissionResult:
    """One demand on the problem: whether it holds, and where the crippled answer showed (or that it did not)."""

    name: str
    holds: bool
    seen_at: str


def build_checks(
    dims: Dims, weights: Mapping[str, Tensor], seeds: Sequence[int], context: int, secret_seed: int, steps: int = 1
) -> list[Check]:
    """Checks of the ordinary weights and of every probe."""
    overlays = {"ordinary": {}, **probe_overlays(dims, weights, secret_seed)}
    return [prepare_check(name, dims, weights, overlay, seeds, context, steps) for name, overlay in overlays.items()]


def first_sighting(checks: Sequence[Check], answer: Answer) -> str:
    """Where the first check rejects `answer` ("probe: reason"), or an empty string if none does."""
    for check in checks:
        errors = [case_errors(case, answer(check, case)) for case in check.cases]
        found = violations(check.bounds, errors)
        if found:
            return f"{check.name}: {found[0]}"
    return ""


def _truth_step(dims: Dims, weights: Mapping[str, Tensor]) -> Step:
    truth = Truth(dims, weights, truth_dtype(dims), cache_bytes=0)
    return truth.step


def _run(dims: Dims, weights: Mapping[str, Tensor], case: Case) -> Outcome:
    return chain(_truth_step(dims, weights), case.token, case.state, case.position, case.steps)


def _hidden_only(made: Callable[[Case], Tensor]) -> Answer:
    """An answer with every state right and `made` as the output."""
    return lambda check, case: Outcome(made(case), case.expected.state)


def _untouched(check: Check, case: Case) -> Outcome:
    """The right output, but a state that was never written (caches padded with their last row)."""
    state = dict(case.state)
    for name, expected in case.expected.state.items():
        missing = expected.shape[0] - state[name].shape[0]
        if missing > 0:
            state[name] = torch.cat((state[name], state[name][-1:].expand(missing, -1)))
    return Outcome(case.expected.hidden, state)


def _empty_answers(dims: Dims) -> Iterator[tuple[str, Answer]]:
    def mean_of_expected(case: Case) -> Tensor:
        return case.expected.hidden.mean().expand(dims.hidden)

    def junk(case: Case) -> Tensor:
        draw = torch.randn(dims.hidden, generator=torch.Generator().manual_seed(case.seed), dtype=torch.float64)
        return draw * case.expected.hidden.double().square().mean().sqrt()

    yield "zeros fail", _hidden_only(lambda case: torch.zeros(dims.hidden))
    yield "a constant fails", _hidden_only(mean_of_expected)
    yield "the identity fails", _hidden_only(lambda case: case.token)
    yield "plausible junk fails", _hidden_only(junk)
    yield "an untouched state fails", _untouched
    for i in range(len(dims.layers)):
        yield f"skipping the attention of block {i} fails", _patched(dims, f"blocks.{i}.attn.o_proj.scales", torch.zeros_like)


def _patched(dims: Dims, name: str, change: Callable[[Tensor], Tensor]) -> Answer:
    """The truth with one weight tensor changed."""
    return lambda check, case: _run(dims, {**check.weights, name: change(check.weights[name])}, case)


def _without_input(dims: Dims, name: str) -> Answer:
    """The truth with the token or one state tensor replaced by zeros."""

    def answer(check: Check, case: Case) -> Outcome:
        token, state = case.token, dict(case.state)
        if name == "token":
            token = torch.zeros_like(token)
        else:
            state[name] = torch.zeros_like(state[name])
        made = chain(_truth_step(dims, check.weights), token, state, case.position, case.steps)
        # The dropped tensor itself is put right: it must show in what depends on it.
        if name != "token":
            made.state[name] = case.expected.state[name]
        return made

    return answer


def _another(weight: Tensor, name: str) -> Tensor:
    """A different tensor that a kernel ignoring this one might as well have used."""
    if name.endswith(".w_q"):
        return weight.roll(1, dims=-1)
    if name.endswith(".zeros"):
        return weight + 1
    return torch.zeros_like(weight)


def check_admission(dims: Dims, weights: Mapping[str, Tensor], checks: Sequence[Check], each_weight: bool = True) -> list[AdmissionResult]:
    """All demands on the problem, judged by `checks` (see ``build_checks``).

    ``each_weight=False`` leaves out the one step per weight tensor and case that make the check slow at "full".
    """
    demands = list(_empty_answers(dims))
    demands += [(f"{name} matters", _without_input(dims, name)) for name in ("token", *(spec.name for spec in state_specs(dims, 1)))]
    if each_weight:

        def change(name: str) -> Callable[[Tensor], Tensor]:
            return lambda weight: _another(weight, name)

        demands += [(f"{spec.name} matters", _patched(dims, spec.name, change(spec.name))) for spec in weight_specs(dims)]
    results: list[AdmissionResult] = []
    for name, answer in demands:
        seen = first_sighting(checks, answer)
        results.append(AdmissionResult(name, bool(seen), seen or "no output, state or probe shows it"))
    return results


def admit(dims: Dims, weights: Mapping[str, Tensor], secret: int) -> list[AdmissionResult]:
    """All demands on the problem, on one fresh case per set of weights."""
    checks = build_checks(dims, weights, [secrets.randbits(40)], dims.context, secret)
    return check_admission(dims, weights, checks, each_weight=dims.hidden <= EACH_WEIGHT_MAX_HIDDEN)
