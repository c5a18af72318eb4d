"""Sizes, tensor names and shapes, weights and cases of the problem.

Weights and states are flat ``dict[str, Tensor]``; the names are those of the problem page
(``blocks.{i}.attn.q_proj.w_q``, ``blocks.{i}.S``, ...), so that a state dict of the public model loads as it
stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .quant import quantise

CONV_TAPS = 4
WINDOW_ROWS = CONV_TAPS - 1
WINDOWS = ("cq", "ck", "cv")
DTYPES = {"u8": torch.uint8, "bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32}

LINEAR_STD = 0.02
CONV_STD = 0.1
STATE_STD = 0.05
CACHE_STD = 0.1
TOKEN_STD = 0.25
PUBLIC_WEIGHT_SEED = 1234


@dataclass(frozen=True)
class Dims:
    """Every size of one problem instance. `layers` names each block's attention: "kda" or "mla".

    `context` is the usual number of cached rows; it bounds nothing. With ``moe=False`` a block ends after its
    attention residual, so that an attention block alone is a problem too.
    """

    hidden: int
    heads: int
    head_dim: int
    kv_lora: int
    nope: int
    rope: int
    v_dim: int
    experts: int
    top_k: int
    ffn: int
    context: int
    layers: tuple[str, ...]
    moe: bool = True
    group: int = 128
    eps: float = 1e-6
    theta: float = 10000.0
    route_scale: float = 2.446

    def __post_init__(self) -> None:
        unknown = sorted(set(self.layers) - {"kda", "mla"})
        if unknown or not self.layers:
            raise ValueError(f"layers must be one or more of 'kda' and 'mla', got {self.layers!r}")
        inner = [self.hidden, self.heads * self.v_dim, self.heads * self.head_dim, self.kv_lora, self.ffn]
        if any(size <= 0 or size % self.group for size in inner):
            raise ValueError(f"every summed axis must be a positive multiple of group={self.group}, got {inner}")
        if self.rope % 2:
            raise ValueError(f"rope={self.rope} must be even: it is rotated in pairs")
        if self.moe and not 0 < self.top_k < self.experts:
            raise ValueError(f"top_k={self.top_k} must be at least 1 and below experts={self.experts}")

    @property
    def channels(self) -> int:
        """Width of each of a KDA block's q, k, v, gate and o."""
        return self.heads * self.head_dim

    @property
    def q_dim(self) -> int:
        """Width of one MLA query head: the unrotated part, then the rotated part."""
        return self.nope + self.rope


FULL = Dims(
    hidden=2304,
    heads=32,
    head_dim=128,
    kv_lora=512,
    nope=128,
    rope=64,
    v_dim=128,
    experts=64,
    top_k=8,
    ffn=1024,
    context=2048,
    layers=("kda", "kda", "kda", "mla"),
)
SMALL = replace(FULL, hidden=1024, heads=16, kv_lora=256, experts=16, top_k=4, ffn=512, context=1024)
NARROW = replace(SMALL, hidden=1536, heads=12, experts=24, top_k=6)
TINY = replace(FULL, hidden=256, heads=4, kv_lora=128, experts=8, top_k=2, ffn=128, context=48)
KDA_BLOCK = replace(SMALL, layers=("kda",), moe=False)
FULL_8K, FULL_16K = replace(FULL, context=8192), replace(FULL, context=16384)
SIZES = {"full": FULL, "full_8k": FULL_8K, "full_16k": FULL_16K, "small": SMALL, "narrow": NARROW, "tiny": TINY, "kda_block": KDA_BLOCK}


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype ("u8", "bf16", "f32" or "i32") and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


@dataclass(frozen=True)
class _Draw:
    """One module's parameter: a float tensor to draw with `std` (0: all ones), then quantise or cast."""

    name: str
    shape: tuple[int, ...]
    std: float
    quantised: bool = False


def _draws(dims: Dims) -> Iterator[_Draw]:
    """Parameters in the order in which the public generator draws them.

    Modules are visited parents first in registration order. What the problem page leaves open is assumed:
    a block registers attn_norm, attn, moe_norm, moe; a KDA module q, k, v, g, beta, o; an MLA module q, kv_a,
    kv_b, o; an MoE module router, gate, up, down, s_gate, s_up, s_down. Norm weights are ones and draw nothing.
    """

    def linear(name: str, rows: int, columns: int, experts: int = 0) -> _Draw:
        lead = (experts,) if experts else ()
        return _Draw(name, (*lead, rows, columns), LINEAR_STD, True)

    c = dims.hidden
    for i, kind in enumerate(dims.layers):
        block = f"blocks.{i}"
        attn = f"{block}.attn"
        yield _Draw(f"{block}.attn_norm", (c,), 0.0)
        if kind == "kda":
            # A parent's own parameter comes before its children's.
            yield _Draw(f"{attn}.conv_w", (3, dims.channels, CONV_TAPS), CONV_STD)
            for part in ("q", "k", "v", "g"):
                yield linear(f"{attn}.{part}_proj", c, dims.channels)
            yield _Draw(f"{attn}.beta_proj.weight", (dims.heads, c), LINEAR_STD)
            yield linear(f"{attn}.o_proj", dims.channels, c)
        else:
            yield linear(f"{attn}.q_proj", c, dims.heads * dims.q_dim)
            yield linear(f"{attn}.kv_a", c, dims.kv_lora + dims.rope)
            yield linear(f"{attn}.kv_b", dims.kv_lora, dims.heads * (dims.nope + dims.v_dim))
            yield linear(f"{attn}.o_proj", dims.heads * dims.v_dim, c)
        if not dims.moe:
            continue
        moe = f"{block}.moe"
        yield _Draw(f"{block}.moe_norm", (c,), 0.0)
        yield _Draw(f"{moe}.router.weight", (dims.experts, c), LINEAR_STD)
        for part, rows, columns in (("gate", c, dims.ffn), ("up", c, dims.ffn), ("down", dims.ffn, c)):
            yield linear(f"{moe}.{part}", rows, columns, dims.experts)
        for part, rows, columns in (("s_gate", c, dims.ffn), ("s_up", c, dims.ffn), ("s_down", dims.ffn, c)):
            yield linear(f"{moe}.{part}", rows, columns)


def weight_specs(dims: Dims) -> list[TensorSpec]:
    """Every weight tensor, in drawing order."""
    specs: list[TensorSpec] = []
    for draw in _draws(dims):
        if not draw.quantised:
            specs.append(TensorSpec(draw.name, "bf16", draw.shape))
            continue
        *lead, rows, columns = draw.shape
        specs.append(TensorSpec(f"{draw.name}.w_q", "u8", (*lead, rows // 2, columns)))
        for part in ("scales", "zeros"):
            specs.append(TensorSpec(f"{draw.name}.{part}", "bf16", (*lead, rows // dims.group, columns)))
    return specs


def state_specs(dims: Dims, capacity: int) -> list[TensorSpec]:
    """Every state tensor, in drawing order; the caches have `capacity` rows."""
    specs: list[TensorSpec] = []
    for i, kind in enumerate(dims.layers):
        block = f"blocks.{i}"
        if kind == "kda":
            specs.append(TensorSpec(f"{block}.S", "f32", (dims.heads, dims.head_dim, dims.head_dim)))
            specs += [TensorSpec(f"{block}.{w}", "bf16", (WINDOW_ROWS, dims.channels)) for w in WINDOWS]
        else:
            specs.append(TensorSpec(f"{block}.c_kv", "bf16", (capacity, dims.kv_lora)))
            specs.append(TensorSpec(f"{block}.k_rope", "bf16", (capacity, dims.rope)))
    return specs


def _normal(shape: tuple[int, ...], std: float, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32).mul_(std)


def make_weights(dims: Dims, seed: int) -> dict[str, Tensor]:
    """Draw and quantise all weights from one CPU generator; at most one float matrix is alive at a time.

    Assumptions behind seed 1234 standing for the public weights: every tensor is drawn in float32 in its
    stored orientation (linear (K, N), beta and router (out, in)) and only then cast or quantised. Experts are
    drawn one by one: torch fills normals in runs of 16, so slices of a multiple of 16 elements make the same
    stream as one big tensor (a test holds this).
    """
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for draw in _draws(dims):
        if draw.std == 0.0:
            weights[draw.name] = torch.ones(draw.shape, dtype=torch.bfloat16)
        elif not draw.quantised:
            weights[draw.name] = _normal(draw.shape, draw.std, generator).bfloat16()
        else:
            *lead, rows, columns = draw.shape
            made = [quantise(_normal((rows, columns), draw.std, generator), dims.group) for _ in range(lead[0] if lead else 1)]
            for j, part in enumerate(("w_q", "scales", "zeros")):
                tensors = [one[j] for one in made]
                weights[f"{draw.name}.{part}"] = torch.stack(tensors) if lead else tensors[0]
    return weights


def make_case(dims: Dims, context: int, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """A token bf16 [hidden] and a state with exactly `context` cached rows (so position = context).

    The state is drawn in block order from one generator seeded with `seed`, the token from ``seed + 1``.
    """
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    for spec in state_specs(dims, context):
        std = STATE_STD if spec.name.endswith(".S") else CACHE_STD
        state[spec.name] = _normal(spec.shape, std, generator).to(spec.torch_dtype)
    token = _normal((dims.hidden,), TOKEN_STD, torch.Generator().manual_seed(seed + 1)).bfloat16()
    return token, state
