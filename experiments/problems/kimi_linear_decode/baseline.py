"""The definition as a bf16 PyTorch model that materialises its weights: the honest yardstick.

Every rounding point of the problem page is here: bf16 activations, bf16 weights dequantised at every call,
float32 inside KDA, softmax and experts, keys and values of every cached row rounded to bf16. Its distance from the
truth says what bf16 costs; its time is what a straightforward port takes. It shares no mathematics with the truth
except the unpacking of nibbles, so that the two check each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from .definition import WINDOWS, Dims
from .quant import PARTS, dequantise

BF16 = torch.bfloat16


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """bf16 [c] normed in float32, the weight multiplied in, rounded once to bf16."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean() + eps) * weight.float()).to(BF16)


def rotate(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of bf16 [..., n] in interleaved pairs: float32 inside, bf16 out."""
    n = x.shape[-1]
    frequency = theta ** (-torch.arange(0, n, 2, dtype=torch.float32, device=x.device) / n)
    turn = torch.polar(torch.ones(n // 2, device=x.device), position * frequency)
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], n // 2, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).to(BF16)


def append_cache(state: dict[str, Tensor], name: str, row: Tensor, position: int) -> Tensor:
    """Write `row` at `position`, in place where there is room, else in a cache one row longer; rows up to it."""
    cache = state[name]
    if position < cache.shape[0]:
        cache[position] = row
    elif position == cache.shape[0]:
        state[name] = cache = torch.cat((cache, row[None]))
    else:
        raise ValueError(f"position {position} is beyond the {cache.shape[0]} rows of {name}: append in order")
    return cache[: position + 1]


class _Scratch:
    """Buffers that outlive a step: fresh pages for every large temporary would double the step's time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, Tensor] = {}

    def take(self, role: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor; it shares memory with every other of the same role."""
        count = math.prod(shape)
        held = self._held.get(role)
        if held is None or held.numel() < count:
            held = self._held[role] = torch.empty(count, dtype=dtype, device=self._device)
        return held[:count].view(shape)


class MaterialisingBaseline:
    """``step(token, state, position) -> hidden`` in bf16; `state` is updated in place (full caches are replaced)."""

    def __init__(self, dims: Dims, weights: Mapping[str, Tensor]) -> None:
        self.dims = dims
        self.weights = weights
        self._scratch = _Scratch(next(iter(weights.values())).device)
        self._trace: dict[str, Tensor] | None = None

    @torch.no_grad()
    def step(self, token: Tensor, state: dict[str, Tensor], position: int, trace: dict[str, Tensor] | None = None) -> Tensor:
        """bf16 [hidden] from bf16 [hidden]; `position` is the number of cached rows before the append.

        `trace` receives the router logits (``L{i}.logits``, bf16), by which near ties are studied.
        """
        self._trace = trace
        h = token
        for i, kind in enumerate(self.dims.layers):
            h = h + self._attention(kind, i, self._norm(h, f"blocks.{i}.attn_norm"), state, position)
            if self.dims.moe:
                h = h + self._moe(i, self._norm(h, f"blocks.{i}.moe_norm"))
        return h

    def _attention(self, kind: str, layer: int, x: Tensor, state: dict[str, Tensor], position: int) -> Tensor:
        block = f"blocks.{layer}"
        o = self._kda(block, x, state) if kind == "kda" else self._mla(block, x, state, position)
        return self._linear(o, f"{block}.attn.o_proj")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weights[name], self.dims.eps)

    def _matrix(self, prefix: str, ids: Tensor | None = None) -> Tensor:
        """bf16 [K, N], or [t, K, N] of the routed experts in one batch; valid until the next call."""
        w_q, scales, zeros = (self.weights[f"{prefix}.{part}"] for part in PARTS)
        if ids is not None:
            w_q, scales, zeros = (part.index_select(0, ids) for part in (w_q, scales, zeros))
        shape = (*w_q.shape[:-2], 2 * w_q.shape[-2], w_q.shape[-1])
        return dequantise(w_q, scales, zeros, BF16, self._scratch.take("bf16", shape, BF16))

    def _wide(self, prefix: str, ids: Tensor | None = None) -> Tensor:
        """The same matrices widened to float32; valid until the next call."""
        narrow = self._matrix(prefix, ids)
        return self._scratch.take("f32", tuple(narrow.shape), torch.float32).copy_(narrow)

    def _linear(self, x: Tensor, prefix: str) -> Tensor:
        """bf16 [..., K] times the materialised bf16 [K, N], float32 sums, bf16 out."""
        return x @ self._matrix(prefix)

    def _kda(self, block: str, x: Tensor, state: dict[str, Tensor]) -> Tensor:
        dims, attn = self.dims, f"{block}.attn"
        taps = self.weights[f"{attn}.conv_w"].float()
        mixed = []
        for m, (window, part) in enumerate(zip(WINDOWS, "qkv", strict=True)):
            rows = torch.cat((state[f"{block}.{window}"], self._linear(x, f"{attn}.{part}_proj")[None]))
            summed = torch.einsum("tc,ct->c", rows.float(), taps[m])
            mixed.append(functional.silu(summed).to(BF16).float().view(dims.heads, dims.head_dim))
            state[f"{block}.{window}"].copy_(rows[1:])
        q, k, v = mixed
        gate = self._linear(x, f"{attn}.g_proj").float().view(dims.heads, dims.head_dim)
        beta = torch.sigmoid(functional.linear(x, self.weights[f"{attn}.beta_proj.weight"]).float())
        s = state[f"{block}.S"]
        s.mul_(torch.exp(-functional.softplus(gate))[..., None])
        predicted = torch.bmm(k[:, None], s)[:, 0]
        s.baddbmm_(k[..., None], (beta[:, None] * (v - predicted))[:, None])
        o = torch.bmm((q * dims.head_dim**-0.5)[:, None], s)
        return o.flatten().to(BF16)

    def _mla(self, block: str, x: Tensor, state: dict[str, Tensor], position: int) -> Tensor:
        dims, attn = self.dims, f"{block}.attn"
        q = self._linear(x, f"{attn}.q_proj").view(dims.heads, dims.q_dim)
        kva = self._linear(x, f"{attn}.kv_a")
        latent, key = kva[: dims.kv_lora], kva[dims.kv_lora :]
        q_rope = rotate(q[:, dims.nope :], position, dims.theta)
        rows = append_cache(state, f"{block}.c_kv", latent, position)
        keys = append_cache(state, f"{block}.k_rope", rotate(key, position, dims.theta), position)
        both = self._linear(rows, f"{attn}.kv_b").view(position + 1, dims.heads, dims.nope + dims.v_dim)
        wide = both.transpose(0, 1).float()
        k_nope, v = wide[..., : dims.nope], wide[..., dims.nope :]
        scores = torch.bmm(k_nope, q[:, : dims.nope, None].float())[..., 0] + q_rope.float() @ keys.float().T
        p = torch.softmax(scores * dims.q_dim**-0.5, dim=-1)
        return torch.bmm(p[:, None], v).flatten().to(BF16)

    def _moe(self, layer: int, x: Tensor) -> Tensor:
        moe = f"blocks.{layer}.moe"
        logits = functional.linear(x, self.weights[f"{moe}.router.weight"])
        if self._trace is not None:
            self._trace[f"L{layer}.logits"] = logits
        p, ids = torch.softmax(logits.float(), dim=-1).topk(self.dims.top_k)
        w = p / (p.sum() + 1e-9) * self.dims.route_scale
        wide = x.float()
        act = functional.silu(wide @ self._wide(f"{moe}.gate", ids)) * (wide @ self._wide(f"{moe}.up", ids))
        routed = w @ torch.bmm(act[:, None], self._wide(f"{moe}.down", ids))[:, 0]
        act = functional.silu(wide @ self._wide(f"{moe}.s_gate")) * (wide @ self._wide(f"{moe}.s_up"))
        return (routed + act @ self._wide(f"{moe}.s_down")).to(BF16)
