"""Sizes, drawing order and quantisation of the Kimi-Linear problem."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments.problems.kimi_linear_decode.definition import (
    SIZES,
    TINY,
    make_case,
    make_weights,
    state_specs,
    weight_specs,
)
from experiments.problems.kimi_linear_decode.quant import dequantise, pack_nibbles, quantise, unpack_nibbles

GOLDEN = {"q_proj": 8360075, "s_down": 2089866, "conv_w": -12.226772, "router": -1.432834, "token": 3.312422, "k_rope": 6.348441}


def test_draws_match_their_specs_and_repeat() -> None:
    first, second = make_weights(TINY, 1234), make_weights(TINY, 1234)
    assert [(s.name, s.torch_dtype, s.shape) for s in weight_specs(TINY)] == [(name, t.dtype, tuple(t.shape)) for name, t in first.items()]
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = make_weights(TINY, 1235)
    assert not torch.equal(first["blocks.0.attn.q_proj.w_q"], other["blocks.0.attn.q_proj.w_q"])


def test_draws_have_not_changed() -> None:
    """Golden sums: recorded results stay comparable only while a seed means the same weights.

    Digits on a rounding edge may differ between torch builds, hence a tolerance of a few units per tensor.
    """
    weights = make_weights(TINY, 1234)
    assert int(weights["blocks.0.attn.q_proj.w_q"].long().sum()) == pytest.approx(GOLDEN["q_proj"], abs=200)
    assert int(weights["blocks.3.moe.s_down.w_q"].long().sum()) == pytest.approx(GOLDEN["s_down"], abs=200)
    assert float(weights["blocks.0.attn.conv_w"].double().sum()) == pytest.approx(GOLDEN["conv_w"], abs=1e-3)
    assert float(weights["blocks.3.moe.router.weight"].double().sum()) == pytest.approx(GOLDEN["router"], abs=1e-3)
    token, state = make_case(TINY, 48, 0)
    assert float(token.double().sum()) == pytest.approx(GOLDEN["token"], abs=1e-3)
    assert float(state["blocks.3.k_rope"].double().sum()) == pytest.approx(GOLDEN["k_rope"], abs=1e-2)


def test_experts_drawn_one_by_one_are_one_stream() -> None:
    """The order of draws is the public one whether experts are drawn together or one at a time."""
    generator = torch.Generator().manual_seed(3)
    together = torch.randn(4, 128, 48, generator=generator)
    generator = torch.Generator().manual_seed(3)
    alone = torch.stack([torch.randn(128, 48, generator=generator) for _ in range(4)])
    assert torch.equal(together, alone)


def test_parent_parameters_are_drawn_before_children() -> None:
    names = [spec.name for spec in weight_specs(TINY)]
    assert names.index("blocks.0.attn.conv_w") < names.index("blocks.0.attn.q_proj.w_q")
    order = [
        "blocks.0.attn_norm",
        "blocks.0.attn.o_proj.w_q",
        "blocks.0.moe_norm",
        "blocks.0.moe.router.weight",
        "blocks.0.moe.s_down.zeros",
        "blocks.1.attn_norm",
    ]
    assert sorted(order, key=names.index) == order


def test_nibbles_round_trip_with_the_even_row_low() -> None:
    q = torch.randint(0, 16, (3, 256, 5), dtype=torch.uint8)
    packed = pack_nibbles(q)
    assert torch.equal(packed[:, 7], q[:, 14] + 16 * q[:, 15])
    back = torch.empty(3, 256, 5, dtype=torch.float64)
    unpack_nibbles(packed, back)
    assert torch.equal(back, q.double())


def test_quantisation_error_is_at_most_half_a_step() -> None:
    w = torch.randn(256, 96, generator=torch.Generator().manual_seed(0)) * 0.02
    w_q, scales, zeros = quantise(w, 128)
    assert bool(((zeros >= 0) & (zeros <= 15) & (zeros == zeros.round())).all())
    wrong = (dequantise(w_q, scales, zeros, torch.float64) - w).view(2, 128, 96).abs().amax(1)
    # Half a step for q, half a step for the zero's rounding at the clamped end, and the scale's rounding to bf16.
    assert bool((wrong <= 1.1 * scales.double()).all())


def test_one_sided_groups_are_clamped() -> None:
    w = torch.linspace(0.5, 1.0, 128)[:, None].repeat(1, 2)
    _, scales, zeros = quantise(w, 128)
    assert zeros.tolist() == [[0.0, 0.0]]
    assert bool((scales > 0).all())


def test_cases_have_exactly_the_context_rows() -> None:
    token, state = make_case(TINY, 17, 5)
    assert token.dtype == torch.bfloat16 and tuple(token.shape) == (TINY.hidden,)
    assert [(s.name, s.torch_dtype, s.shape) for s in state_specs(TINY, 17)] == [
        (name, t.dtype, tuple(t.shape)) for name, t in state.items()
    ]
    assert float(state["blocks.0.S"].std()) == pytest.approx(0.05, rel=0.05)


def test_sub_problems_are_sizes_too() -> None:
    block = SIZES["kda_block"]
    names = {spec.name for spec in weight_specs(block)}
    assert "blocks.0.attn.q_proj.w_q" in names
    assert not any("moe" in name for name in names)
    assert SIZES["full"].channels == 4096


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ("kda", "gru")}, "layers"),
        ({"hidden": 200}, "multiple of group"),
        ({"rope": 63}, "even"),
        ({"top_k": 8}, "top_k"),
        ({"layers": ()}, "layers"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)  # type: ignore[arg-type]
