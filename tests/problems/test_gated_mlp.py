"""gated_mlp: every fault shows under some probe, right implementations pass all of them, chains stay stable and are verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from experiments.problems.gated_mlp import interface
from experiments.problems.gated_mlp.admission import admit
from experiments.problems.gated_mlp.baseline import Baseline
from experiments.problems.gated_mlp.definition import EPS, SIZES, Dims, make_input, make_weights
from experiments.problems.gated_mlp.probes import probe_overlays
from experiments.problems.gated_mlp.reference import Truth, truth_dtype
from experiments.problems.gated_mlp.tolerance import (
    ELEMENT_FACTOR,
    RMS_FACTOR,
    Check,
    Outcome,
    case_errors,
    copy_faults,
    prepare_check,
    structure_faults,
    tensor_error,
)
from tests.problems.mlp_faults import Block, all_faults

Forward = Callable[[Mapping[str, Tensor], Tensor], Tensor]
TINY, SMALL = SIZES["tiny"], SIZES["small"]
FAULTS = all_faults(TINY)
SECRETS = (3, 5, 8)
PROBES = ("ordinary", *probe_overlays(TINY, make_weights(TINY, 0), 0))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def checks_of(dims: Dims, secret: int) -> list[Check]:
    """Checks of weights, overlays and cases that are all drawn from one secret."""
    weights = make_weights(dims, secret)
    overlays: dict[str, dict[str, Tensor]] = {"ordinary": {}, **probe_overlays(dims, weights, secret)}
    return [prepare_check(name, dims, weights, overlay, [secret, secret + 50], 0) for name, overlay in overlays.items()]


@pytest.fixture(scope="module")
def tiny_checks() -> list[Check]:
    return checks_of(TINY, SECRETS[0])


@pytest.fixture(scope="module")
def small_checks() -> list[Check]:
    return checks_of(SMALL, SECRETS[0])


def seen_by(checks: list[Check], forward: Forward) -> list[str]:
    """The names of the checks that reject, by the judge's rule: median and worst error, and the largest element."""
    names = []
    for check in checks:
        errors = [case_errors(case, Outcome(forward(check.weights, case.inputs["x"])))["y"] for case in check.cases]
        bound, relative = check.bounds["y"], torch.tensor([e.relative for e in errors], dtype=torch.float64)
        fits = float(relative.quantile(0.5)) <= RMS_FACTOR * bound.median and float(relative.max()) <= RMS_FACTOR * bound.worst
        if not (fits and max(e.element for e in errors) <= ELEMENT_FACTOR * bound.element):
            names.append(check.name)
    return names


def in_slices(w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Honest bf16 with float32 sums, unlike the baseline in order and rounding: slices summed one by one, gate and up never rounded."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    n = (wide * scale * w["norm.weight"].float()).bfloat16().float()
    gate, up = (sum_of_slices(n, w[f"{name}.weight"].float(), 32) for name in ("gate", "up"))
    hidden = (functional.silu(gate) * up).bfloat16().float()
    return (wide + sum_of_slices(hidden, w["down.weight"].float(), 64)).bfloat16()


def sum_of_slices(x: Tensor, weight: Tensor, width: int) -> Tensor:
    total = torch.zeros(x.shape[0], weight.shape[0])
    for begin in reversed(range(0, x.shape[1], width)):
        total += x[:, begin : begin + width] @ weight[:, begin : begin + width].T
    return total


def wide_everywhere(w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Better than the baseline: float32 throughout, rounded at the end."""
    own, wide = {name: tensor.float() for name, tensor in w.items()}, x.float()
    n = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * own["norm.weight"]
    hidden = functional.silu(n @ own["gate.weight"].T) * (n @ own["up.weight"].T)
    return (wide + hidden @ own["down.weight"].T).bfloat16()


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("size", ["tiny", "small"])
def test_right_implementations_pass_every_probe(size: str, secret: int) -> None:
    checks = checks_of(SIZES[size], secret)
    assert [check.name for check in checks] == list(PROBES)
    for forward in (in_slices, wide_everywhere, Block().run):
        assert seen_by(checks, forward) == [], forward


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_shows_at_tiny(name: str, tiny_checks: list[Check]) -> None:
    assert seen_by(tiny_checks, FAULTS[name].run), f"no probe shows: {name}"


@pytest.mark.parametrize("name", all_faults(SMALL))
def test_every_fault_shows_at_small(name: str, small_checks: list[Check]) -> None:
    assert seen_by(small_checks, all_faults(SMALL)[name].run), f"no probe shows: {name}"


def test_every_input_probe_draws_what_it_says() -> None:
    drawn = {name: make_input(SMALL, 11, name).float() for name in PROBES}
    ordinary = drawn["ordinary"]
    assert torch.equal(drawn["scaled_up"], 8 * ordinary)
    assert torch.allclose(drawn["shifted"] - 5, ordinary, atol=0.07)
    assert 1e-4 < float(drawn["scaled_down"].square().mean().sqrt()) < 1e-2
    odd = drawn["odd_rows"]
    kinds = {(int((row != 0).sum()), len(row.unique())) for row in odd}
    assert {(0, 1), (1, 2), (SMALL.d, 1)} < kinds, "a zero row, a row with one element, a constant row"
    sizes = drawn["mixed_sizes"].square().mean(-1).sqrt()
    assert float(sizes.max() / sizes.min()) > 1e5
    assert torch.equal(drawn["sorted"], drawn["sorted"].sort(dim=-1).values)
    assert all(
        torch.equal(drawn[name], ordinary) for name in ("gates_saturated", "block_dominates", "one_unit", "one_column", "up_block_zero")
    )


def test_odd_rows_change_places() -> None:
    zero_at = {int((make_input(TINY, seed, "odd_rows") == 0).all(dim=-1).int().argmax()) for seed in range(30)}
    assert zero_at == set(range(TINY.rows))


def test_the_zeroed_block_of_up_lies_at_a_secret_place() -> None:
    weights = make_weights(TINY, 1)
    places = set()
    for secret in range(6):
        zero = (probe_overlays(TINY, weights, secret)["up_block_zero"]["up.weight"] == 0).all(dim=0).nonzero().flatten()
        assert len(zero) == TINY.d // 8 and int(zero[-1] - zero[0]) == len(zero) - 1
        places.add(int(zero[0]))
    assert len(places) > 3


def test_overlays_leave_the_weights_alone() -> None:
    weights = make_weights(TINY, 1)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    probe_overlays(TINY, weights, 4)
    assert all(torch.equal(weights[name], before[name]) for name in weights)


@pytest.mark.parametrize("name", PROBES)
def test_a_chain_of_60_steps_stays_stable_and_is_verified(name: str) -> None:
    """Right implementations are accepted to the end; what goes wrong in one step of sixty is seen."""
    weights = make_weights(TINY, 21)
    weights |= {"ordinary": {}, **probe_overlays(TINY, weights, 9)}[name]
    start = interface.start(TINY, 0, 13, name)
    made = chain(in_slices, weights, start.inputs["x"], 60)
    assert interface.verify_chain(TINY, weights, start, 0, made, {}) == ("", 60)
    size = made[-1]["y"].float().square().mean().sqrt()
    first = max(float(made[0]["y"].float().square().mean().sqrt()), 1.0)
    assert bool(torch.isfinite(size)) and float(size) < 60 * first
    better = chain(wide_everywhere, weights, start.inputs["x"], 60)
    assert interface.verify_chain(TINY, weights, start, 0, better, None) == ("", 60)


def test_a_chain_grows_like_a_residual_stream() -> None:
    for size, steps in (("tiny", 60), ("small", 60)):
        dims, weights = SIZES[size], make_weights(SIZES[size], 2)
        x = make_input(dims, 4)
        made = chain(wide_everywhere, weights, x, steps)
        grown = float(made[-1]["y"].float().square().mean().sqrt() / x.float().square().mean().sqrt())
        assert 1 < grown < 30, size


@pytest.mark.parametrize("wrong_at", [0, 7, 39])
def test_a_chain_that_does_no_work_in_one_step_is_refused(wrong_at: int) -> None:
    weights, start = make_weights(TINY, 21), interface.start(TINY, 0, 13)
    made, x = [], start.inputs["x"]
    for index in range(40):
        x = x.clone() if index == wrong_at else in_slices(weights, x)
        made.append({"y": x})
    fault, compared = interface.verify_chain(TINY, weights, start, 0, made, {})
    assert "relative errors" in fault and compared == 40


def test_a_chain_that_is_not_finite_is_refused() -> None:
    weights, start = make_weights(TINY, 21), interface.start(TINY, 0, 13)
    made = chain(in_slices, weights, start.inputs["x"], 4)
    made[2]["y"] = made[2]["y"].clone()
    made[2]["y"][1, 7] = float("nan")
    assert interface.verify_chain(TINY, weights, start, 0, made, {}) == ("step 2 of a timed chain has outputs that are not finite", 2)


def chain(forward: Forward, weights: Mapping[str, Tensor], x: Tensor, steps: int) -> list[dict[str, Tensor]]:
    made = []
    for _ in range(steps):
        x = forward(weights, x)
        made.append({"y": x})
    return made


def test_cases_of_several_steps_walk_the_chain() -> None:
    weights = make_weights(TINY, 3)
    check = prepare_check("ordinary", TINY, weights, {}, [1, 2], 0, steps=3)
    for case in check.cases:
        right = Outcome(chain(in_slices, weights, case.inputs["x"], 3)[-1]["y"])
        assert case_errors(case, right)["y"].relative <= RMS_FACTOR * check.bounds["y"].worst
        assert case_errors(case, Outcome(in_slices(weights, case.inputs["x"])))["y"].relative > RMS_FACTOR * check.bounds["y"].worst


def test_a_small_row_is_not_hidden_by_a_large_one() -> None:
    expected = torch.tensor([[1000.0, -1000.0], [1.0, -1.0]])
    wrong = tensor_error(expected, torch.tensor([[1000.0, -1000.0], [1.0, -1.5]]))
    assert wrong.element == pytest.approx(0.5) and wrong.relative == pytest.approx(0.5 / 2**0.5)
    assert tensor_error(torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [0.0, 1e-9]])).relative > 1e15
    assert tensor_error(torch.zeros(2, 2), torch.zeros(2, 2)) == (0.0, 0.0)


def test_structure_is_told() -> None:
    case = prepare_check("ordinary", TINY, make_weights(TINY, 3), {}, [1], 0).cases[0]
    good = Outcome(torch.zeros(TINY.rows, TINY.d, dtype=torch.bfloat16))
    assert structure_faults(TINY, case, good) == [] == copy_faults(case, good)
    assert structure_faults(TINY, case, Outcome(good.y.float()))[0].startswith("y is torch.float32 (4, 256), expected bfloat16")
    assert structure_faults(TINY, case, Outcome(good.y[:2]))[0].startswith("y is torch.bfloat16 (2, 256)")


def test_the_truth_is_wide_and_another_writing_than_the_baseline() -> None:
    weights, x = make_weights(TINY, 3), make_input(TINY, 1)
    assert truth_dtype(TINY) == truth_dtype(SMALL) == torch.float64 and truth_dtype(SIZES["large"]) == torch.float32
    exact = Truth(TINY, weights)(x)
    assert exact.dtype == torch.float64 and tensor_error(Block().run(weights, x), exact).relative < 1e-12
    assert 1e-4 < tensor_error(exact, Baseline(TINY, weights).call({"x": x}, {}, 0)["y"]).relative < 1e-2


def test_the_problem_is_admitted() -> None:
    results = admit(TINY, make_weights(TINY, 77), 5)
    assert {f"{name} matters" for name in ("x", "norm.weight", "gate.weight", "up.weight", "down.weight")} < {r.name for r in results}
    assert [r for r in results if not r.holds] == []


def test_a_block_without_effect_is_not_admitted() -> None:
    weights = make_weights(TINY, 77)
    weights["down.weight"] = torch.zeros_like(weights["down.weight"])
    missing = {r.name for r in admit(TINY, weights, 5) if not r.holds}
    assert {"the identity fails", "gate.weight matters", "up.weight matters", "norm.weight matters"} <= missing
