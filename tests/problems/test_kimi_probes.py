"""The probes show every fault they were made for, and the problem may be admitted. Tiny size, truth in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from experiments.problems.kimi_linear_decode.admission import build_checks, check_admission
from experiments.problems.kimi_linear_decode.definition import TINY, make_weights, weight_specs
from experiments.problems.kimi_linear_decode.reference import Truth
from experiments.problems.kimi_linear_decode.tolerance import Check
from tests.problems.kimi_faults import Fault, all_faults, faulty

FAULTS = all_faults(TINY)
QUANTISED = [spec.name for spec in weight_specs(TINY) if spec.name.endswith(".zeros")]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return make_weights(TINY, seed=77)


@pytest.fixture(scope="module")
def checks(weights: dict[str, Tensor]) -> list[Check]:
    return build_checks(TINY, weights, seeds=[11, 22], context=TINY.context, secret_seed=5)


def seen_by(checks: list[Check], fault: Fault | None = None, overlay: Mapping[str, Tensor] | None = None) -> list[str]:
    """The names of the checks that reject a faulty step."""
    names = []
    for check in checks:
        patched = {**check.weights, **(overlay or {})}
        truth = Truth(TINY, patched, torch.float64, cache_bytes=0) if fault is None else faulty(TINY, patched, fault)
        if check.violations(truth.step):
            names.append(check.name)
    return names


def test_the_truth_itself_passes_every_check(checks: list[Check]) -> None:
    assert seen_by(checks) == []


@pytest.mark.parametrize("name", FAULTS)
def test_fault_shows_at_outputs_or_states(name: str, checks: list[Check]) -> None:
    assert seen_by(checks, fault=FAULTS[name]), f"no probe shows: {name}"


@pytest.mark.parametrize("name", QUANTISED)
def test_wrong_zero_points_of_one_group_show(name: str, checks: list[Check]) -> None:
    for check in checks:
        zeros = check.weights[name].clone()
        zeros[..., -1, :] += 1
        truth = Truth(TINY, {**check.weights, name: zeros}, torch.float64, cache_bytes=0)
        if check.violations(truth.step):
            return
    pytest.fail(f"no probe shows wrong zero points in the last group of {name}")


def test_the_problem_is_admitted(weights: dict[str, Tensor], checks: list[Check]) -> None:
    one_case = [replace(check, cases=check.cases[:1]) for check in checks]
    results = check_admission(TINY, weights, one_case)
    assert len(results) > len(weight_specs(TINY))
    assert [result for result in results if not result.holds] == []
