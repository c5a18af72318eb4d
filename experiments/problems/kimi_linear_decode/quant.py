"""Int4 group quantisation: pack, unpack and dequantise matrices stored as (K in, N out).

A quantised matrix is three tensors: ``w_q`` uint8 [K/2, N] (row 2j in the low nibble, row 2j+1 in the high
nibble), ``scales`` and ``zeros`` bf16 [K/group, N]. Experts carry one more leading axis. All functions here
accept any number of leading axes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

PARTS = ("w_q", "scales", "zeros")


def pack_nibbles(q: Tensor) -> Tensor:
    """Pack uint8 [..., K, N] holding 0..15 into uint8 [..., K/2, N]."""
    return q[..., 0::2, :] | (q[..., 1::2, :] << 4)


def unpack_nibbles(w_q: Tensor, out: Tensor) -> None:
    """Unpack uint8 [..., K/2, N] into `out` [..., K, N] (0..15 is exact in every float type used)."""
    out[..., 0::2, :] = w_q & 15
    out[..., 1::2, :] = w_q >> 4


def quantise(w: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise float32 [K, N] per group of rows; returns (w_q, scales, zeros).

    The rounding of q uses the float32 scale; only the stored scale is bf16 (so the stored pair reproduces w
    slightly less well than it could: that is the problem's definition, not an error here).
    """
    rows, columns = w.shape
    if rows % group or group % 2:
        raise ValueError(f"cannot quantise {rows} rows in groups of {group}: use an even group that divides the rows")
    grouped = w.view(rows // group, group, columns)
    low, high = grouped.aminmax(dim=1)
    scale = (high - low).clamp_(min=1e-8).div_(15)
    zero = low.neg().div_(scale).round_().clamp_(0, 15)
    q = grouped.div(scale[:, None]).add_(zero[:, None]).round_().clamp_(0, 15)
    packed = pack_nibbles(q.to(torch.uint8).view(rows, columns))
    return packed, scale.bfloat16(), zero.bfloat16()


def dequantise(w_q: Tensor, scales: Tensor, zeros: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """(q - zero) * scale as [..., K, N] of `dtype`, into `out` if one of that dtype and shape is given.

    In bf16 the difference is exact for integer zeros and the product is rounded once; in float32 and float64
    the result is exact.
    """
    q = out
    if q is None:
        q = torch.empty(*w_q.shape[:-2], 2 * w_q.shape[-2], w_q.shape[-1], dtype=dtype, device=w_q.device)
    unpack_nibbles(w_q, q)
    grouped = q.view(*scales.shape[:-1], -1, q.shape[-1])
    grouped.sub_(zeros.to(dtype).unsqueeze(-2)).mul_(scales.to(dtype).unsqueeze(-2))
    return q


class Dequantiser:
    """Dequantises matrices of a weight dict on demand, keeping the first ones within a byte bound.

    A decode step visits the same matrices in the same order every time. Under that pattern a
    least-recently-used cache smaller than one round never hits, so what came first simply stays.
    """

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype, cache_bytes: int = 0) -> None:
        self._weights = weights
        self._dtype = dtype
        self._room = cache_bytes
        self._kept: dict[tuple[str, int], Tensor] = {}

    def matrix(self, prefix: str, expert: int = -1) -> Tensor:
        """[K, N] of the linear layer `prefix` (of one expert if `expert` >= 0)."""
        key = (prefix, expert)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        parts = [self._weights[f"{prefix}.{part}"] for part in PARTS]
        if expert >= 0:
            parts = [part[expert] for part in parts]
        made = dequantise(parts[0], parts[1], parts[2], self._dtype)
        size = made.numel() * made.element_size()
        if size <= self._room:
            self._room -= size
            self._kept[key] = made
        return made

    def plain(self, name: str) -> Tensor:
        """An unquantised weight tensor in the working dtype."""
        return self._weights[name].to(self._dtype)
