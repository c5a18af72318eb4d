"""Probe weights: overlays under which faults that ordinary weights hide become visible at outputs or states.

Under ordinary weights the attention adds about one percent to the residual and a single cached row a few
thousandths of that, so whole stages could be wrong unseen. Each probe lets one part of the step dominate. Only
small tensors are overlaid (scales, router rows, convolution taps); the int4 digits stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .definition import CACHE_STD, LINEAR_STD, TOKEN_STD, Dims

Overlay = dict[str, Tensor]

O_PROJ_FACTOR = 100.0
MOE_FACTOR = 16.0
CONV_FACTOR = 4.0
EXPERT_FACTOR = 8.0
# The residual share of a part that should dominate it; the spread of attention scores before softmax; the spread of a
# router row that should decide.
DOMINANCE = 8.0
SHARP_SCORES = 1.0
DECISIVE_LOGITS = 25.0


def _scaled(weights: Mapping[str, Tensor], names: list[str], factor: float) -> Overlay:
    return {name: (weights[name].float() * factor).bfloat16() for name in names}


def _power_of_two(x: float) -> float:
    """The nearest power of two: bf16 tensors scaled by it keep their digits."""
    return 2.0 ** round(math.log2(x))


def _attention_scales(dims: Dims, kinds: tuple[str, ...], part: str) -> list[str]:
    return [f"blocks.{i}.attn.{part}.scales" for i, kind in enumerate(dims.layers) if kind in kinds]


def _kda_focus(dims: Dims, weights: Mapping[str, Tensor]) -> Overlay:
    """Larger convolution outputs make the delta rule a large part of S; o_proj brings o to the residual's size."""
    convs = [f"blocks.{i}.attn.conv_w" for i, kind in enumerate(dims.layers) if kind == "kda"]
    return _scaled(weights, convs, CONV_FACTOR) | _scaled(weights, _attention_scales(dims, ("kda",), "o_proj"), O_PROJ_FACTOR)


def _mla_focus(dims: Dims, weights: Mapping[str, Tensor], sharp: bool) -> Overlay:
    """The MLA output dominates its residual; scores are all zero (every row weighs the same) or spread out.

    Equal weights are the hardest test of completeness: a skipped row then changes the attention output by one part
    in the square root of the number of rows, and nothing else hides that. Under spread scores the new row is brought
    down to the size of the cached ones: left several times larger, its softmax weight would magnify honest errors
    more than faults.
    """

    def scaled(part: str, factor: float) -> Overlay:
        return _scaled(weights, _attention_scales(dims, ("mla",), part), factor)

    projected = LINEAR_STD * math.sqrt(dims.hidden)
    new_row = CACHE_STD if sharp else projected
    ctx = math.hypot(CACHE_STD / math.sqrt(dims.context), new_row / dims.context)
    y = ctx * LINEAR_STD**2 * math.sqrt(dims.kv_lora * dims.heads * dims.v_dim)
    overlay = scaled("o_proj", _power_of_two(DOMINANCE * TOKEN_STD / y))
    if not sharp:
        return overlay | scaled("q_proj", 0.0)
    key = LINEAR_STD * math.sqrt(dims.kv_lora) * CACHE_STD
    score = projected * math.hypot(key * math.sqrt(dims.nope), CACHE_STD * math.sqrt(dims.rope))
    return (
        overlay
        | scaled("q_proj", _power_of_two(SHARP_SCORES * math.sqrt(dims.q_dim) / score))
        | scaled("kv_a", _power_of_two(CACHE_STD / projected))
    )


def _one_expert(dims: Dims, weights: Mapping[str, Tensor], secret_seed: int) -> Overlay:
    """Two secret experts per block with opposite, decisive router rows and large outputs.

    A linear router can't favour one expert for every input, but of two opposite rows one is always high: so
    exactly one of the pair is routed with nearly all the weight, unless the input happens to be nearly orthogonal
    to the row.
    """
    generator = torch.Generator().manual_seed(secret_seed)
    overlay: Overlay = {}
    for i in range(len(dims.layers)):
        first, second = torch.randperm(dims.experts, generator=generator)[:2].tolist()
        name = f"blocks.{i}.moe.router.weight"
        rows = weights[name].clone()
        factor = _power_of_two(DECISIVE_LOGITS / (LINEAR_STD * math.sqrt(dims.hidden)))
        rows[first] = rows[first] * factor
        rows[second] = -rows[first]
        overlay[name] = rows
        name = f"blocks.{i}.moe.down.scales"
        scales = weights[name].clone()
        scales[[first, second]] *= EXPERT_FACTOR
        overlay[name] = scales
    return overlay


def probe_overlays(dims: Dims, weights: Mapping[str, Tensor], secret_seed: int) -> dict[str, Overlay]:
    """Named overlays of a few weight tensors each; only those that this problem's parts call for.

    =============== ==========================================================================================
    o_proj_x100     attention outputs as large as the residual, in every block
    kda_focus       KDA blocks: convolution taps x4 as well, so that k, v and beta shape S and o
    mla_uniform     MLA output dominates, every cached row weighs the same: a skipped or stale row shows
    mla_sharp       MLA output dominates, scores spread: queries, keys and their rotation show
    moe_down_zero   no MoE output: what the attention and the residuals do is left alone
    shared_only     routed down scales 0, shared x16
    routed_only     shared down scales 0, routed x16: expert choice and weights show
    one_expert      one of two secret experts per block takes nearly all weight, with a large output
    =============== ==========================================================================================
    """
    overlays: dict[str, Overlay] = {"o_proj_x100": _scaled(weights, _attention_scales(dims, ("kda", "mla"), "o_proj"), O_PROJ_FACTOR)}
    if "kda" in dims.layers:
        overlays["kda_focus"] = _kda_focus(dims, weights)
    if "mla" in dims.layers:
        overlays["mla_uniform"] = _mla_focus(dims, weights, sharp=False)
        overlays["mla_sharp"] = _mla_focus(dims, weights, sharp=True)
    if dims.moe:
        routed = [f"blocks.{i}.moe.down.scales" for i in range(len(dims.layers))]
        shared = [f"blocks.{i}.moe.s_down.scales" for i in range(len(dims.layers))]
        overlays["moe_down_zero"] = _scaled(weights, routed + shared, 0.0)
        overlays["shared_only"] = _scaled(weights, routed, 0.0) | _scaled(weights, shared, MOE_FACTOR)
        overlays["routed_only"] = _scaled(weights, routed, MOE_FACTOR) | _scaled(weights, shared, 0.0)
        overlays["one_expert"] = _one_expert(dims, weights, secret_seed)
    return overlays
