"""How far a correct implementation may lie from the truth, measured on the honest bf16 baseline.

Per output and state tensor the relative RMS error of a candidate must be at most twice the baseline's, in the
median and in the worst of the seeds, and its largest element error at most ``ELEMENT_FACTOR`` times the
baseline's worst. Pure copies (older window rows, cached rows) must be equal bit for bit.

**Router near ties.** If two experts compete for the last routed place by less than what bf16 costs, truth and an
honest implementation may choose different ones, and their outputs differ by a whole expert: a comparison of
values then says nothing about correctness. Such cases are redrawn (``draw_case``); ``routing_gap`` decides, on the
truth alone, so a candidate has no say in which cases are judged. Measured on the baseline, logits are off by 0.6 %
(median) to 1.2 % (worst) of their RMS in the last block, and no experts changed places over a gap above 0.8 %; the
margin is 2 %. Under probe weights with large router rows the *weights* can be as ill-conditioned: a case is also
redrawn if ``routing_slope`` says that such a logit error would move a weight by more than about one percent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .baseline import MaterialisingBaseline
from .definition import WINDOW_ROWS, Dims, make_case, state_specs
from .reference import Truth

Step = Callable[[Tensor, dict[str, Tensor], int], Tensor]

RMS_FACTOR = 2.0
ELEMENT_FACTOR = 4.0  # torch_best, a different honest implementation, stays within 1.7
# What one rounding to the storage type costs: no bound is set below it, however exact the baseline was by luck.
FLOORS = {"bf16": 2.0**-9, "f32": 1e-5}
ROUTING_MARGIN = 0.02
MAX_ROUTING_SLOPE = 1.0
NEGLIGIBLE_SHARE = 1e-4
REDRAWS = 200
REDRAW_STRIDE = 1_000_003
FLOAT64_MAX_HIDDEN = 1024


class TensorError(NamedTuple):
    """Relative RMS error, and the largest element error over the RMS of the expected tensor."""

    relative: float
    element: float


class Bound(NamedTuple):
    """The baseline's errors over all seeds: median and worst relative RMS, worst element (see TensorError)."""

    median: float
    worst: float
    element: float


@dataclass(frozen=True)
class Outcome:
    """Output and state after the last step; caches may have more rows than are filled."""

    hidden: Tensor
    state: dict[str, Tensor]

    def cpu(self) -> Outcome:
        """The same in the memory of the CPU."""
        return Outcome(self.hidden.cpu(), moved(self.state, torch.device("cpu")))


def moved(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Tensors on a device."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def device_of(weights: Mapping[str, Tensor]) -> torch.device:
    """Where truth and baseline are computed: where the weights are."""
    return next(iter(weights.values())).device


@dataclass(frozen=True)
class Case:
    """One drawn start, the truth after `steps` chained steps (each output is the next token), and its seed."""

    token: Tensor
    state: dict[str, Tensor]
    position: int
    steps: int
    seed: int
    expected: Outcome

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs by name."""
        return {"token": self.token}


def truth_dtype(dims: Dims) -> torch.dtype:
    """float64 where it is affordable, else float32 (at "full" its error is 1e-3 of the bf16 error)."""
    return torch.float64 if dims.hidden <= FLOAT64_MAX_HIDDEN else torch.float32


def _logit_units(weights: Mapping[str, Tensor], trace: Mapping[str, Tensor], layer: int) -> Tensor:
    """What each logit of a block would be for an input of this size in an average direction: its error scale."""
    rows = weights[f"blocks.{layer}.moe.router.weight"].double()
    size: Tensor = trace[f"L{layer}.x2"].double().square().mean().sqrt()
    return rows.square().sum(dim=1).sqrt() * size


def routing_gap(dims: Dims, weights: Mapping[str, Tensor], trace: Mapping[str, Tensor]) -> float:
    """Smallest distance, over all blocks, between a routed and an unrouted expert, in units of their logits.

    Routed experts of under NEGLIGIBLE_SHARE of the weight do not count: another in their place changes nothing.
    """
    gap = float("inf")
    for i in range(len(dims.layers) if dims.moe else 0):
        unit = _logit_units(weights, trace, i)
        logits = trace[f"L{i}.logits"].double()
        ids = trace[f"L{i}.ids"].long()[trace[f"L{i}.w"] >= NEGLIGIBLE_SHARE * dims.route_scale]
        others = torch.ones_like(logits, dtype=torch.bool)
        others[trace[f"L{i}.ids"].long()] = False
        mean_unit = ((unit[ids].square()[:, None] + unit[others].square()) / 2).sqrt()
        gap = min(gap, float(((logits[ids][:, None] - logits[others]) / mean_unit).min()))
    return gap


def routing_slope(dims: Dims, weights: Mapping[str, Tensor], trace: Mapping[str, Tensor]) -> float:
    """Largest change, over blocks and routed experts, of a normalised weight per relative error of its logit.

    That is share * (1 - share) * the logit's unit: about 0.2 under ordinary weights.
    """
    slope = 0.0
    for i in range(len(dims.layers) if dims.moe else 0):
        share = trace[f"L{i}.w"].double() / dims.route_scale
        unit = _logit_units(weights, trace, i)[trace[f"L{i}.ids"].long()]
        slope = max(slope, float((share * (1 - share) * unit).max()))
    return slope


def chain(step: Step, token: Tensor, state: Mapping[str, Tensor], position: int, steps: int) -> Outcome:
    """Run `steps` chained steps on a copy of `state`."""
    own = {name: tensor.clone() for name, tensor in state.items()}
    hidden = token
    for j in range(steps):
        hidden = step(hidden, own, position + j)
    return Outcome(hidden, own)


def routes_clearly(dims: Dims, weights: Mapping[str, Tensor], trace: Mapping[str, Tensor], margin: float = ROUTING_MARGIN) -> bool:
    """Whether truth and an honest implementation choose the same experts with about the same weights in this step."""
    return routing_gap(dims, weights, trace) >= margin and routing_slope(dims, weights, trace) <= MAX_ROUTING_SLOPE


def draw_case(truth: Truth, context: int, seed: int, steps: int = 1, margin: float = ROUTING_MARGIN) -> Case:
    """The first case from `seed` on whose truth routes clearly, with a gap of `margin`, in every step.

    A margin of 0 keeps every draw. Redraws take fixed strides of the seed, so the result is reproducible.
    """
    dims, weights = truth.dims, truth.weights
    for attempt in range(REDRAWS):
        used = seed + attempt * REDRAW_STRIDE
        token, state = make_case(dims, context, used)
        clear: list[bool] = []

        def traced(hidden: Tensor, own: dict[str, Tensor], position: int, clear: list[bool] = clear) -> Tensor:
            trace: dict[str, Tensor] = {}
            made = truth.step(hidden, own, position, trace)
            clear.append(routes_clearly(dims, weights, trace, margin))
            return made

        device = device_of(weights)
        expected = chain(traced, token.to(device), moved(state, device), context, steps).cpu()
        if all(clear) or margin <= 0:
            return Case(token, state, context, steps, used, expected)
    raise RuntimeError(f"no case of {REDRAWS} keeps a routing gap of {margin} over {steps} steps: use fewer steps or a smaller margin")


def _fresh_rows(name: str, case: Case) -> slice | None:
    """The rows of a state tensor that the steps computed; None: all of it."""
    if name.endswith((".c_kv", ".k_rope")):
        return slice(case.position, case.position + case.steps)
    if name.endswith((".cq", ".ck", ".cv")):
        return slice(max(WINDOW_ROWS - case.steps, 0), WINDOW_ROWS)
    return None


def tensor_error(expected: Tensor, actual: Tensor) -> TensorError:
    """Errors of one tensor; infinite if anything is not finite."""
    want = expected.double()
    got = actual.double()
    if got.shape != want.shape or not bool(torch.isfinite(got).all()):
        return TensorError(float("inf"), float("inf"))
    rms = max(float(want.square().mean().sqrt()), 1e-30)
    wrong = got - want
    return TensorError(float(wrong.square().mean().sqrt()) / rms, float(wrong.abs().max()) / rms)


def case_errors(case: Case, actual: Outcome) -> dict[str, TensorError]:
    """Errors of the output and of what the steps computed in every state tensor."""
    errors = {"hidden": tensor_error(case.expected.hidden, actual.hidden)}
    for name, expected in case.expected.state.items():
        rows = _fresh_rows(name, case)
        got = actual.state[name]
        errors[name] = tensor_error(expected, got) if rows is None else tensor_error(expected[rows], got[rows])
    return errors


def structure_faults(dims: Dims, case: Case, actual: Outcome) -> list[str]:
    """Wrong names, dtypes, shapes or strides: to be settled before any value is looked at."""
    faults: list[str] = []
    if actual.hidden.dtype != torch.bfloat16 or tuple(actual.hidden.shape) != (dims.hidden,):
        faults.append(f"hidden is {actual.hidden.dtype} {tuple(actual.hidden.shape)}, expected bfloat16 ({dims.hidden},)")
    filled = case.position + case.steps
    for spec in state_specs(dims, filled):
        got = actual.state.get(spec.name)
        if got is None:
            faults.append(f"state {spec.name} is missing")
            continue
        cache = spec.name.endswith((".c_kv", ".k_rope"))
        rows_fit = got.shape[:1] >= (filled,) if cache else got.shape[:1] == spec.shape[:1]
        if got.dtype != spec.torch_dtype or tuple(got.shape[1:]) != spec.shape[1:] or not rows_fit:
            faults.append(f"state {spec.name} is {got.dtype} {tuple(got.shape)}, expected {spec.torch_dtype} {spec.shape}")
        elif not got.is_contiguous():
            faults.append(f"state {spec.name} is not contiguous")
    unknown = sorted(set(actual.state) - {spec.name for spec in state_specs(dims, filled)})
    return faults + [f"state {name} is unknown" for name in unknown]


def copy_faults(case: Case, actual: Outcome) -> list[str]:
    """Rows that a correct step only moves or leaves alone, and that are not bit-equal to where they came from."""
    faults: list[str] = []
    for name, before in case.state.items():
        rows = _fresh_rows(name, case)
        if rows is None:
            continue
        after = actual.state[name]
        if name.endswith((".c_kv", ".k_rope")):
            same = torch.equal(after[: case.position], before[: case.position].to(after.dtype))
        else:
            kept = rows.start
            same = torch.equal(after[:kept], before[WINDOW_ROWS - kept :].to(after.dtype))
        if not same:
            faults.append(f"{name}: rows that are only copied have changed")
    return faults


def bounds_of(dims: Dims, errors: Sequence[Mapping[str, TensorError]]) -> dict[str, Bound]:
    """Bounds from the baseline's errors of many seeds, never below the cost of one rounding."""
    kinds = {spec.name: spec.dtype for spec in state_specs(dims, 1)} | {"hidden": "bf16"}
    bounds: dict[str, Bound] = {}
    for name in errors[0]:
        floor = FLOORS[kinds[name]]
        relative = [one[name].relative for one in errors]
        bounds[name] = Bound(
            max(statistics.median(relative), floor), max(*relative, floor), max(*(one[name].element for one in errors), floor)
        )
    return bounds


def calibrate(
    dims: Dims,
    weights: Mapping[str, Tensor],
    overlay: Mapping[str, Tensor],
    seeds: Iterable[int],
    context: int,
    steps: int = 1,
    margin: float = ROUTING_MARGIN,
) -> dict[str, Bound]:
    """The baseline's error against the truth under `overlay`, per output and state tensor, over `seeds`."""
    return prepare_check("", dims, weights, overlay, seeds, context, steps, margin).bounds


def violations(bounds: Mapping[str, Bound], errors: Sequence[Mapping[str, TensorError]]) -> list[str]:
    """What a candidate's errors (one dict per seed) break of the acceptance rule; empty: accepted."""
    found: list[str] = []
    for name, bound in bounds.items():
        relative = [one[name].relative for one in errors]
        element = max(one[name].element for one in errors)
        for what, value, limit in (
            ("median error", statistics.median(relative), RMS_FACTOR * bound.median),
            ("worst error", max(relative), RMS_FACTOR * bound.worst),
            ("largest element error", element, ELEMENT_FACTOR * bound.element),
        ):
            if not value <= limit:
                found.append(f"{name}: {what} {value:.3g} is above {limit:.3g}")
    return found


@dataclass(frozen=True)
class Check:
    """Everything needed to judge a step under one set of weights: the cases, their truth, and the bounds."""

    name: str
    weights: dict[str, Tensor]
    cases: tuple[Case, ...]
    bounds: dict[str, Bound]

    def outcomes(self, step: Step) -> list[Outcome]:
        return [chain(step, case.token, case.state, case.position, case.steps) for case in self.cases]

    def violations(self, step: Step) -> list[str]:
        """Value and copy faults of `step`, which must already run with this check's weights."""
        made = self.outcomes(step)
        errors = [case_errors(case, one) for case, one in zip(self.cases, made, strict=True)]
        copies = [fault for case, one in zip(self.cases, made, strict=True) for fault in copy_faults(case, one)]
        return violations(self.bounds, errors) + sorted(set(copies))


def prepare_check(
    name: str,
    dims: Dims,
    weights: Mapping[str, Tensor],
    overlay: Mapping[str, Tensor],
    seeds: Iterable[int],
    context: int,
    steps: int = 1,
    margin: float = ROUTING_MARGIN,
) -> Check:
    """Draw the cases of `seeds` under the overlaid weights and calibrate on them."""
    device = device_of(weights)
    patched = {**weights, **moved(overlay, device)}
    truth = Truth(dims, patched, truth_dtype(dims))
    baseline = MaterialisingBaseline(dims, patched)
    cases = tuple(draw_case(truth, context, seed, steps, margin) for seed in seeds)
    errors = [
        case_errors(case, chain(baseline.step, case.token.to(device), moved(case.state, device), case.position, case.steps).cpu())
        for case in cases
    ]
    return Check(name, patched, cases, bounds_of(dims, errors))
