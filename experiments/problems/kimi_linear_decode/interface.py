"""What the judge asks of this problem: fresh starts, the form of the output, and the truth of a timed chain."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .baseline import MaterialisingBaseline
from .definition import Dims, make_case
from .reference import Truth
from .tolerance import FLOORS, RMS_FACTOR, Outcome, device_of, moved, routes_clearly, tensor_error

MAX_SHARE = 0.3  # of the change of a later block's state over a chain; honest implementations stay below 0.01, and 0.1 where S grows


# Under weights that make the delta rule strong (`kda_focus`) S grows by orders of magnitude over a chain, and so do honest errors, by luck:
# two honest implementations were seen to differ by twice. There only a gross fault can be told from them.
GROWTH, GROWN_ERROR, GROWN_SHARE = 4.0, 0.1, 0.6


@dataclass(frozen=True)
class Start:
    """Where a chain begins: inputs and state by name."""

    inputs: dict[str, Tensor]
    state: dict[str, Tensor]


def outputs(dims: Dims) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """(dtype, shape) of every output of a step."""
    return {"hidden": (torch.bfloat16, (dims.hidden,))}


def start(dims: Dims, context: int, seed: int, probe: str = "ordinary") -> Start:
    """A fresh start; all probes of this problem draw alike, they differ in weights."""
    token, state = make_case(dims, context, seed)
    return Start({"token": token}, state)


def growing(name: str) -> bool:
    """Whether a state tensor gets a row per step."""
    return name.endswith((".c_kv", ".k_rope"))


def short_context(dims: Dims) -> bool:
    """Whether a start with a few cached rows asks something of its own."""
    return "mla" in dims.layers


def outcome(made: Mapping[str, Tensor], state: dict[str, Tensor]) -> Outcome:
    """Outputs and state as `tolerance.case_errors` takes them."""
    return Outcome(made["hidden"], state)


def _share_of_change(before: Tensor, exact: Tensor, got: Tensor, grows: bool) -> float:
    """Distance of a state from the truth over what the chain changed in it; in a cache, the median over the new rows."""
    if grows:
        new = slice(before.shape[0], exact.shape[0])
        wrong = (got[new].double() - exact[new].double()).norm(dim=-1) / exact[new].double().norm(dim=-1).clamp_min(1e-30)
        return float(wrong.median()) if wrong.numel() else 0.0
    change = (exact.double() - before.double()).norm().clamp_min(1e-30)
    share = float((got.double() - exact.double()).norm() / change)
    return share if share == share else float("inf")  # not a number is as far off as can be


def _state_fault(name: str, before: Tensor, exact: Tensor, honest: Tensor, got: Tensor) -> str:
    """What is wrong with a state after a chain, or an empty string."""
    rows = slice(0, exact.shape[0])
    grown = not growing(name) and float(exact.norm()) > GROWTH * float(before.norm())
    if not name.startswith("blocks.0."):
        share, most = _share_of_change(before, exact, got[rows], growing(name)), GROWN_SHARE if grown else MAX_SHARE
        return "" if share <= most else f"is off by {share:.2g} of what the chain changes; allowed {most}"
    mine, honest_error = tensor_error(exact, got[rows]).relative, max(tensor_error(exact, honest[rows]).relative, FLOORS["bf16"])
    allowed = max(2 * RMS_FACTOR * honest_error, GROWN_ERROR if grown else 0.0)
    return "" if mine <= allowed else f"has a relative error of {mine:.3g}; allowed {allowed:.3g}"


def verify_chain(dims: Dims, weights: Mapping[str, Tensor], begun: Start, position: int, made: Sequence[Mapping[str, Tensor]],
                 state: Mapping[str, Tensor] | None) -> tuple[str, int]:  # fmt: skip
    """Compare the outputs of a timed chain with the truth: (what is wrong or "", steps that could be compared).

    Truth and the bf16 baseline walk along the candidate's own tokens, so an error does not grow from step to step by
    itself. Steps in which two experts nearly tie (as in `draw_case`) say nothing and are left out. Of the others the median
    error must be at most twice the baseline's there, and none may exceed four times the baseline's worst. `state` is what the
    whole chain left, or None where only its first steps are given.
    """
    baseline, truth = MaterialisingBaseline(dims, weights), Truth(dims, weights, torch.float32)
    device = device_of(weights)
    states = [{k: v.to(device, copy=True) for k, v in begun.state.items()} for _ in range(2)]
    token = begun.inputs["token"].to(device)
    own, honest = [], []
    for i, step in enumerate(made):
        trace: dict[str, Any] = {}
        exact = truth.step(token, states[0], position + i, trace)
        rough = baseline.step(token, states[1], position + i)
        got = step["hidden"].to(device)
        if not bool(torch.isfinite(got).all()):
            return f"step {i} of a timed chain has outputs that are not finite", i
        if routes_clearly(dims, weights, trace):
            own.append(tensor_error(exact, got).relative)
            honest.append(tensor_error(exact, rough).relative)
        token = got
    # The first block's state depends on no routing, so it must be right whatever the experts did. Later ones hold steps in which experts
    # nearly tied, so they can only be compared roughly: one expert more or less moves a step's share of them by a few percent.
    states = [moved(left, torch.device("cpu")) for left in states]
    for name, exact_state in states[0].items() if state is not None else ():
        fault = _state_fault(name, begun.state[name], exact_state, states[1][name], state[name])
        if fault:
            return f"{name} after a timed chain of {len(made)} steps {fault}", len(own)
    if not own:
        return "", 0
    median, worst = RMS_FACTOR * statistics.median(honest), 2 * RMS_FACTOR * max(honest)
    if statistics.median(own) <= median and max(own) <= worst:
        return "", len(own)
    return (f"{len(own)} steps of a timed chain have relative errors of {statistics.median(own):.3g} (median) and {max(own):.3g} (worst); "
            f"allowed {median:.3g} and {worst:.3g}"), len(own)  # fmt: skip
