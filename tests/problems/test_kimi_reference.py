"""The truth against the definition's bf16 baseline, against itself by another route, and node by node."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from experiments.problems.kimi_linear_decode import tolerance
from experiments.problems.kimi_linear_decode.baseline import MaterialisingBaseline
from experiments.problems.kimi_linear_decode.definition import SMALL, TINY, make_case, make_weights
from experiments.problems.kimi_linear_decode.graph import build_graph
from experiments.problems.kimi_linear_decode.nodes import node_specs
from experiments.problems.kimi_linear_decode.probes import probe_overlays
from experiments.problems.kimi_linear_decode.reference import Truth, node_reference
from experiments.problems.kimi_linear_decode.tolerance import (
    case_errors,
    chain,
    copy_faults,
    draw_case,
    prepare_check,
    routing_gap,
    structure_faults,
    tensor_error,
    violations,
)
from experiments.problems.kimi_linear_decode.torch_best import TorchBest

F64 = torch.float64


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return make_weights(TINY, 1234)


def test_baseline_is_near_the_truth_in_every_tensor(weights: dict[str, Tensor]) -> None:
    """A mistake in either would show as errors of percents; bf16 costs some thousandths."""
    check = prepare_check("ordinary", TINY, weights, {}, range(0, 60, 10), TINY.context)
    for name, bound in check.bounds.items():
        assert 1e-4 < bound.median < 8e-3, name
        assert bound.worst < 1.2e-2, name


def test_baseline_is_near_the_truth_over_chained_steps(weights: dict[str, Tensor]) -> None:
    case = draw_case(Truth(TINY, weights, F64), TINY.context, seed=3, steps=4)
    made = chain(MaterialisingBaseline(TINY, weights).step, case.token, case.state, case.position, 4)
    assert max(error.relative for error in case_errors(case, made).values()) < 0.03
    assert structure_faults(TINY, case, made) == []
    assert copy_faults(case, made) == []


def test_absorbed_and_per_row_attention_agree(weights: dict[str, Tensor]) -> None:
    sharp = {**weights, **probe_overlays(TINY, weights, 1)["mla_sharp"]}
    token, state = make_case(TINY, TINY.context, 9)
    absorbed, per_row = dict(state), dict(state)
    one = Truth(TINY, sharp, F64).step(token, absorbed, TINY.context)
    other = Truth(TINY, sharp, F64, absorb=False).step(token, per_row, TINY.context)
    assert tensor_error(one, other).element < 1e-10
    assert torch.equal(absorbed["blocks.3.c_kv"], per_row["blocks.3.c_kv"])


def test_float32_truth_is_far_closer_than_bf16(weights: dict[str, Tensor]) -> None:
    token, state = make_case(TINY, TINY.context, 9)
    exact = Truth(TINY, weights, F64).step(token, dict(state), TINY.context)
    single = Truth(TINY, weights, torch.float32).step(token, dict(state), TINY.context)
    assert tensor_error(exact, single).relative < 1e-6


def test_inputs_are_not_written_and_spare_cache_rows_stay(weights: dict[str, Tensor]) -> None:
    token, state = make_case(TINY, 20, 9)
    padded = {
        name: torch.cat((t, torch.full((5, t.shape[1]), 7.0).bfloat16())) if name.endswith(("c_kv", "k_rope")) else t
        for name, t in state.items()
    }
    before = {name: t.clone() for name, t in padded.items()}
    given = dict(padded)
    hidden = Truth(TINY, weights, F64).step(token, given, 20)
    assert all(torch.equal(padded[name], before[name]) for name in before)
    assert given["blocks.3.c_kv"].shape == padded["blocks.3.c_kv"].shape
    assert bool((given["blocks.3.c_kv"][21:] == 7).all())
    assert torch.equal(hidden, Truth(TINY, weights, F64).step(token, dict(state), 20))
    for implementation in (MaterialisingBaseline(TINY, weights), TorchBest(TINY, weights)):
        own = {name: t.clone() for name, t in padded.items()}
        implementation.step(token, own, 20)
        assert torch.equal(own["blocks.3.c_kv"][21:], before["blocks.3.c_kv"][21:])


@pytest.mark.parametrize("context", [0, 1, 48])
def test_nodes_composed_are_the_step(weights: dict[str, Tensor], context: int) -> None:
    """Every node judged alone, from bare edges, gives what it gave inside the step."""
    token, state = make_case(TINY, context, 4)
    trace: dict[str, Tensor] = {}
    after = dict(state)
    hidden = Truth(TINY, weights, F64).step(token, after, context, trace)
    edges: dict[str, Tensor] = {"token": token}
    states = dict(state)
    for spec in node_specs(TINY):
        made = node_reference(
            TINY,
            weights,
            spec.name,
            {name: edges[name] for name in spec.inputs},
            {name: states[name] for name in spec.reads + spec.writes},
            context,
        )
        assert set(made) == set(spec.outputs) | set(spec.writes)
        for name, tensor in made.items():
            (states if name in spec.writes else edges)[name] = tensor
    assert torch.equal(edges["hidden"], hidden)
    assert all(torch.equal(states[name], after[name]) for name in after)
    assert set(edges) == set(trace)
    assert all(torch.equal(edges[name], trace[name]) for name in trace if name != "token")


@pytest.mark.parametrize("dims", [TINY, SMALL, replace(TINY, layers=("mla",), moe=False), replace(TINY, layers=("mla", "kda"))])
def test_nodes_and_edges_are_those_of_the_stage_graph(dims: object) -> None:
    assert isinstance(dims, type(TINY))
    graph = build_graph(dims)
    specs = {spec.name: spec for spec in node_specs(dims)}
    assert set(specs) == {node.name for node in graph.nodes}
    for node in graph.nodes:
        assert set(specs[node.name].outputs) == set(node.outputs.values())
        states = {*specs[node.name].reads, *specs[node.name].writes}
        assert {*specs[node.name].inputs, *states} == {*node.inputs.values(), *node.states.values()}


def test_shapes_of_edges_are_those_of_the_stage_graph(weights: dict[str, Tensor]) -> None:
    token, state = make_case(TINY, TINY.context, 4)
    trace: dict[str, Tensor] = {}
    Truth(TINY, weights).step(token, state, TINY.context, trace)
    declared = build_graph(TINY).tensors
    for name, tensor in trace.items():
        assert tuple(tensor.shape) == tuple(declared[name].shape), name


def test_node_errors_say_what_is_missing(weights: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"L0\.conv, L0\.kda_state"):
        node_reference(TINY, weights, "L0.convolution", {}, {}, 0)
    with pytest.raises(ValueError, match=r"L0\.qkvg.*blocks\.0\.ck"):
        node_reference(TINY, weights, "L0.conv", {}, {}, 0)
    token, state = make_case(TINY, 4, 4)
    with pytest.raises(ValueError, match="position 5"):
        Truth(TINY, weights).step(token, state, 5)


@pytest.mark.parametrize(
    "dims",
    [
        replace(TINY, layers=("kda",), moe=False),
        replace(TINY, layers=("mla",), moe=False),
        replace(TINY, layers=("mla", "kda"), heads=2, experts=5, top_k=3, context=7),
    ],
)
def test_any_sizes_work_in_every_implementation(dims: object) -> None:
    assert isinstance(dims, type(TINY))
    own = make_weights(dims, 8)
    check = prepare_check("ordinary", dims, own, {}, [1, 2], dims.context)
    assert check.violations(TorchBest(dims, own).step) == []


def test_torch_best_stays_within_twice_the_baseline(weights: dict[str, Tensor]) -> None:
    for name, overlay in {"ordinary": {}, **probe_overlays(TINY, weights, 3)}.items():
        check = prepare_check(name, TINY, weights, overlay, [40, 50, 60, 70], TINY.context)
        best = TorchBest(TINY, check.weights)
        made = check.outcomes(best.step)
        assert structure_faults(TINY, check.cases[0], made[0]) == []
        assert check.violations(best.step) == [], name


def test_router_ties_are_redrawn(weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    truth = Truth(TINY, weights, F64)
    case = draw_case(truth, TINY.context, seed=12, margin=0.3)
    trace: dict[str, Tensor] = {}
    truth.step(case.token, dict(case.state), case.position, trace)
    assert routing_gap(TINY, weights, trace) >= 0.3
    again = draw_case(truth, TINY.context, seed=12, margin=0.3)
    assert again.seed == case.seed and torch.equal(again.token, case.token)
    tied = trace | {"L2.logits": torch.zeros_like(trace["L2.logits"])}
    assert routing_gap(TINY, weights, tied) == 0.0
    monkeypatch.setattr(tolerance, "REDRAWS", 3)
    with pytest.raises(RuntimeError, match="smaller margin"):
        draw_case(truth, TINY.context, seed=12, margin=50.0)


def test_infinite_and_missing_values_are_faults(weights: dict[str, Tensor]) -> None:
    check = prepare_check("ordinary", TINY, weights, {}, [3], TINY.context)
    case, made = check.cases[0], check.outcomes(MaterialisingBaseline(TINY, weights).step)[0]
    made.state["blocks.1.S"][0, 0, 0] = float("nan")
    assert any(v.startswith("blocks.1.S") for v in violations(check.bounds, [case_errors(case, made)]))
    made.state["blocks.0.cq"][0, 0] += 1
    assert copy_faults(case, made) == ["blocks.0.cq: rows that are only copied have changed"]
    made.state["blocks.0.cq"] = made.state["blocks.0.cq"].float()
    assert structure_faults(TINY, case, made) == ["state blocks.0.cq is torch.float32 (3, 512), expected torch.bfloat16 (3, 512)"]
    del made.state["blocks.0.cq"]
    assert structure_faults(TINY, case, made) == ["state blocks.0.cq is missing"]
