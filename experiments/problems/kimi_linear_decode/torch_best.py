"""The fastest decode step found within what PyTorch itself offers on a CPU: the time to beat.

Weights are packed once at load for torch's int4 kernel (bf16 in, float32 sums, bf16 out), matrices that share an
input are fused, kv_b is absorbed, and the shared expert runs as one more routed expert of weight 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .baseline import BF16, append_cache, rotate
from .definition import WINDOWS, Dims
from .quant import dequantise, unpack_nibbles

PACK_COLUMNS = 16  # torch's packer takes whole tiles of 16 output columns


class _Int4(NamedTuple):
    """One matrix as torch's int4 kernel wants it: w = (q - 8) * scale + zero."""

    packed: Tensor
    scale_zero: Tensor
    group: int

    def __call__(self, x: Tensor) -> Tensor:
        """bf16 [rows, K] -> bf16 [rows, N]."""
        made: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, self.group, self.scale_zero)
        return made


def pack_int4(parts: Sequence[tuple[Tensor, Tensor, Tensor]], group: int) -> _Int4:
    """Pack (w_q, scales, zeros) matrices with equal K side by side into one of all their columns.

    The kernel's zero (8 - z) * s is rounded to bf16: exact where 8 - z is 0 or a power of two, as for most groups
    of centred weights, else half a unit in the last place of at most 8 scales.
    """
    w_q, scales, zeros = (torch.cat([part[j] for part in parts], dim=-1) for j in range(3))
    if w_q.shape[-1] % PACK_COLUMNS:
        raise ValueError(
            f"torch's int4 kernel needs whole tiles of {PACK_COLUMNS} columns, got {w_q.shape[-1]}: use sizes that are multiples of it"
        )
    q = torch.empty(2 * w_q.shape[0], w_q.shape[1], dtype=torch.int32)
    unpack_nibbles(w_q, q)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.T.contiguous(), 1)
    return _Int4(packed, torch.stack((scales, (8 - zeros) * scales), dim=-1).contiguous(), group)


# The two small matrices (beta, router) are widened at load: torch's float32 product of a vector is five times
# faster than its bf16 one at these sizes.


class _Kda(NamedTuple):
    norm: Tensor
    qkvg: _Int4
    beta: Tensor  # float32 [head, hidden]
    taps: Tensor  # float32 [tap, 3 * C]
    o_proj: _Int4


class _Mla(NamedTuple):
    norm: Tensor
    q_kva: _Int4
    key_up: Tensor  # bf16 [head, nope, kv_lora]
    value_up: Tensor  # bf16 [head, kv_lora, v_dim]
    o_proj: _Int4


class _Moe(NamedTuple):
    norm: Tensor
    router: Tensor  # float32 [expert, hidden]
    gate_up: list[_Int4]  # the shared expert last
    down: list[_Int4]


class TorchBest:
    """``step(token, state, position) -> hidden`` in bf16.

    `state` is updated in place (full caches are replaced). torch.compile of the pointwise parts was measured at
    "small" with 2 threads and left out: no gain beyond the noise (under 5 %), for 20 s of compilation.
    """

    def __init__(self, dims: Dims, weights: Mapping[str, Tensor]) -> None:
        self.dims = dims
        self._weights = weights
        with torch.inference_mode():
            self._attn = [
                self._load_kda(f"blocks.{i}") if kind == "kda" else self._load_mla(f"blocks.{i}") for i, kind in enumerate(dims.layers)
            ]
            self._moe = [self._load_moe(f"blocks.{i}") for i in range(len(dims.layers))] if dims.moe else []
        self._weights = {}

    # -- load ------------------------------------------------------------------------------------------------

    def _parts(self, prefix: str, expert: int = -1) -> tuple[Tensor, Tensor, Tensor]:
        w_q, scales, zeros = (self._weights[f"{prefix}.{part}"] for part in ("w_q", "scales", "zeros"))
        return (w_q, scales, zeros) if expert < 0 else (w_q[expert], scales[expert], zeros[expert])

    def _pack(self, *prefixes: str, expert: int = -1) -> _Int4:
        return pack_int4([self._parts(prefix, expert) for prefix in prefixes], self.dims.group)

    def _load_kda(self, block: str) -> _Kda:
        attn = f"{block}.attn"
        taps = self._weights[f"{attn}.conv_w"].float().flatten(0, 1).T.contiguous()
        return _Kda(
            self._weights[f"{block}.attn_norm"],
            self._pack(*(f"{attn}.{p}_proj" for p in "qkvg")),
            self._weights[f"{attn}.beta_proj.weight"].float(),
            taps,
            self._pack(f"{attn}.o_proj"),
        )

    def _load_mla(self, block: str) -> _Mla:
        dims, attn = self.dims, f"{block}.attn"
        both = dequantise(*self._parts(f"{attn}.kv_b"), BF16).view(dims.kv_lora, dims.heads, -1)
        return _Mla(
            self._weights[f"{block}.attn_norm"],
            self._pack(f"{attn}.q_proj", f"{attn}.kv_a"),
            both[..., : dims.nope].permute(1, 2, 0).contiguous(),
            both[..., dims.nope :].permute(1, 0, 2).contiguous(),
            self._pack(f"{attn}.o_proj"),
        )

    def _load_moe(self, block: str) -> _Moe:
        moe, experts = f"{block}.moe", range(self.dims.experts)
        gate_up = [self._pack(f"{moe}.gate", f"{moe}.up", expert=e) for e in experts]
        down = [self._pack(f"{moe}.down", expert=e) for e in experts]
        return _Moe(
            self._weights[f"{block}.moe_norm"],
            self._weights[f"{moe}.router.weight"].float(),
            [*gate_up, self._pack(f"{moe}.s_gate", f"{moe}.s_up")],
            [*down, self._pack(f"{moe}.s_down")],
        )

    # -- step ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self, token: Tensor, state: dict[str, Tensor], position: int) -> Tensor:
        """bf16 [hidden] from bf16 [hidden]; `position` is the number of cached rows before the append."""
        h = token[None]
        for i, attn in enumerate(self._attn):
            x = self._norm(h, attn.norm)
            o = self._kda(f"blocks.{i}", attn, x, state) if isinstance(attn, _Kda) else self._mla(f"blocks.{i}", attn, x, state, position)
            h = h + attn.o_proj(o)
            if self._moe:
                h = h + self._mix(self._moe[i], self._norm(h, self._moe[i].norm))
        return h[0]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (self.dims.hidden,), weight, self.dims.eps)

    def _kda(self, block: str, w: _Kda, x: Tensor, state: dict[str, Tensor]) -> Tensor:
        dims, c = self.dims, self.dims.channels
        y = w.qkvg(x)
        windows = [state[f"{block}.{name}"] for name in WINDOWS]
        rows = torch.cat((torch.cat(windows, dim=1), y[:, : 3 * c]))
        for m, window in enumerate(windows):
            window.copy_(rows[1:, m * c : (m + 1) * c])
        mixed = functional.silu((rows * w.taps).sum(0)).to(BF16).float()
        q, k, v = mixed.view(3, dims.heads, dims.head_dim)
        q = q * dims.head_dim**-0.5
        decay = torch.exp(-functional.softplus(y[0, 3 * c :].float())).view(dims.heads, dims.head_dim)
        beta = torch.sigmoid(w.beta.mv(x[0].float()))[:, None]
        s = state[f"{block}.S"]
        # One pass over the old state serves both products: q.S' = (q * decay).S + (q.k) * delta.
        both = torch.bmm(torch.stack((k, q), dim=1) * decay[:, None], s)
        delta = beta * (v - both[:, 0])
        o = both[:, 1] + (q * k).sum(-1, keepdim=True) * delta
        s.mul_(decay[..., None]).addcmul_(k[..., None], delta[:, None])
        flat: Tensor = o.view(1, -1).to(BF16)
        return flat

    def _mla(self, block: str, w: _Mla, x: Tensor, state: dict[str, Tensor], position: int) -> Tensor:
        dims = self.dims
        y = w.q_kva(x)[0]
        cut = dims.heads * dims.q_dim
        q, latent = y[:cut].view(dims.heads, dims.q_dim), y[cut : cut + dims.kv_lora]
        keys = torch.cat((q[:, dims.nope :], y[None, cut + dims.kv_lora :]))
        turned = rotate(keys, position, dims.theta)
        rows = append_cache(state, f"{block}.c_kv", latent, position)
        row_keys = append_cache(state, f"{block}.k_rope", turned[-1], position)
        absorbed = torch.bmm(q[:, None, : dims.nope], w.key_up)[:, 0]
        queries = torch.cat((absorbed, turned[:-1]), dim=1)
        # Values are the keys' first kv_lora columns: passing the keys as values too keeps the fused kernel usable.
        cached = torch.cat((rows, row_keys), dim=1)[None, None]
        ctx = functional.scaled_dot_product_attention(queries[None, None], cached, cached, scale=dims.q_dim**-0.5)[0, 0, :, : dims.kv_lora]
        return torch.bmm(ctx[:, None], w.value_up).view(1, -1)

    def _mix(self, w: _Moe, x: Tensor) -> Tensor:
        p, ids = torch.softmax(w.router.mv(x[0].float()), dim=0).topk(self.dims.top_k)
        scale = torch.cat((p / (p.sum() + 1e-9) * self.dims.route_scale, p.new_ones(1)))
        experts = [*ids.tolist(), self.dims.experts]
        gate, up = torch.cat([w.gate_up[e](x) for e in experts]).chunk(2, dim=1)
        act = functional.silu(gate) * up
        outs = torch.cat([w.down[e](act[j : j + 1]) for j, e in enumerate(experts)])
        return (scale @ outs.float()).to(BF16)[None]
