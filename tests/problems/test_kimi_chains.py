"""The truth of a timed chain accepts honest work over many chains, also where the recurrence grows, and sees states that are wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from experiments.problems.kimi_linear_decode import interface
from experiments.problems.kimi_linear_decode.definition import SIZES, make_weights
from experiments.problems.kimi_linear_decode.probes import probe_overlays
from experiments.problems.kimi_linear_decode.torch_best import TorchBest

TINY = SIZES["tiny"]
STEPS, CHAINS = 24, 12
Chain = tuple[interface.Start, list[dict[str, Tensor]], dict[str, Tensor]]


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return make_weights(TINY, 5)


def chain(patched: dict[str, Tensor], seed: int) -> Chain:
    """A chain of another honest implementation than the one that the bounds come from."""
    begun = interface.start(TINY, TINY.context, seed)
    state = {
        name: torch.cat((t, torch.zeros(STEPS, t.shape[1], dtype=t.dtype))) if interface.growing(name) else t.clone()
        for name, t in begun.state.items()
    }
    best, token, made = TorchBest(TINY, patched), begun.inputs["token"], []
    for i in range(STEPS):
        token = best.step(token, state, TINY.context + i).clone()
        made.append({"hidden": token})
    return begun, made, state


@pytest.mark.parametrize("probe", ["ordinary", "kda_focus", "o_proj_x100", "mla_sharp"])
def test_another_honest_implementation_is_accepted_in_every_chain(weights: dict[str, Tensor], probe: str) -> None:
    patched = {**weights, **({"ordinary": {}} | probe_overlays(TINY, weights, 9))[probe]}
    for seed in range(CHAINS):
        begun, made, state = chain(patched, seed)
        fault, _ = interface.verify_chain(TINY, patched, begun, TINY.context, made, state)
        assert fault == "", f"seed {seed}: {fault}"


@pytest.mark.parametrize("name", ["blocks.0.S", "blocks.2.S", "blocks.1.cq", "blocks.3.c_kv", "blocks.3.k_rope"])
@pytest.mark.parametrize("probe", ["ordinary", "kda_focus"])
def test_a_state_that_was_left_alone_is_seen(weights: dict[str, Tensor], probe: str, name: str) -> None:
    patched = {**weights, **({"ordinary": {}} | probe_overlays(TINY, weights, 9))[probe]}
    begun, made, state = chain(patched, 3)
    old = begun.state[name]
    state[name] = torch.cat((old, old[-1:].expand(STEPS, -1))) if interface.growing(name) else old
    fault, _ = interface.verify_chain(TINY, patched, begun, TINY.context, made, state)
    assert name in fault
