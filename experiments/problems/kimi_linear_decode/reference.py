"""The truth: the unrounded mathematics of a step, and of every node alone.

Weights are (q - zero) * scale without the rounding to bf16, activations are never rounded, and everything is
held in the working dtype (float64, or float32 where float64 is too large). The truth deliberately is not the
bf16 definition: a more accurate kernel must not be rejected for differing from an inaccurate oracle. How far an
honest bf16 implementation may lie from it is measured (tolerance.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .definition import Dims
from .nodes import Edges, NodeMath, NodeSpec, node_specs, rotate_pairs

DEFAULT_CACHE_BYTES = 1 << 30


class Truth:
    """Executes steps in `dtype`.

    Matrices are dequantised one at a time, of the experts only the routed ones; up to `cache_bytes` of them are
    kept. With ``absorb=False`` the MLA blocks up-project every cached row, as the definition is written; both
    ways are equal in exact arithmetic.
    """

    def __init__(
        self,
        dims: Dims,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        absorb: bool = True,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the truth is computed in float32 or float64, not {dtype}")
        self.dims = dims
        self.weights = weights
        self.math = NodeMath(dims, weights, dtype, cache_bytes)
        self._nodes = node_specs(dims)
        self._absorb = absorb

    def step(self, token: Tensor, state: dict[str, Tensor], position: int, trace: Edges | None = None) -> Tensor:
        """hidden [c] after one step. `position` is the number of cached rows before the append.

        Entries of `state` are replaced by new tensors of the working dtype (a cache that was just full grows by
        one row); the tensors passed in are not written to. `trace` receives every edge tensor by name.
        """
        edges: Edges = {} if trace is None else trace
        edges["token"] = token.to(self.math.dtype)
        for spec in self._nodes:
            if not self._absorb and spec.kind in ("absorb", "wv"):
                continue
            made = (
                self._rows(spec, edges, state, position)
                if (not self._absorb and spec.kind == "attend")
                else self.math.run(spec, {name: edges[name] for name in spec.inputs}, state, position)
            )
            for name, tensor in made.items():
                (state if name in spec.writes else edges)[name] = tensor
        return edges["hidden"]

    def _rows(self, spec: NodeSpec, edges: Edges, state: Mapping[str, Tensor], position: int) -> Edges:
        """o of an MLA block from keys and values of every row (`append` has already run in a whole step)."""
        dims, own, block = self.dims, f"L{spec.layer}.", f"blocks.{spec.layer}"
        with torch.no_grad():
            key_half, value_half = self.math.kv_b(f"{block}.attn")
            rows, kr = state[f"{block}.c_kv"][: position + 1], state[f"{block}.k_rope"][: position + 1]
            keys = torch.einsum("lc,chd->lhd", rows, key_half)
            values = torch.einsum("lc,chv->lhv", rows, value_half)
            scores = torch.einsum("hd,lhd->hl", edges[own + "q"][:, : dims.nope], keys)
            queries = rotate_pairs(edges[own + "q"][:, dims.nope :], position, dims.theta)
            scores = (scores + queries @ kr.T) * dims.q_dim**-0.5
            return {own + "o": torch.einsum("hl,lhv->hv", torch.softmax(scores, dim=-1), values)}


def node_reference(
    dims: Dims,
    weights: Mapping[str, Tensor],
    node_name: str,
    inputs: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    position: int,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Outputs and changed states of one node, judged from the inputs it actually had.

    `inputs` holds the node's input edges in any float dtype (``node_specs`` lists them; ``attn_norm`` of a later
    block takes either the terms of its residual or ``L{i}.h`` itself); `state` the states it reads, before the
    step. Nothing passed in is changed.
    """
    specs = {spec.name: spec for spec in node_specs(dims)}
    if node_name not in specs:
        raise ValueError(f"no node {node_name!r} in this problem; nodes are {', '.join(specs)}")
    spec = specs[node_name]
    residual_given = spec.kind == "attn_norm" and f"L{spec.layer}.h" in inputs
    missing = [] if residual_given else [name for name in spec.inputs if name not in inputs]
    missing += [name for name in {*spec.reads, *spec.writes} if name not in state]
    if missing:
        raise ValueError(f"node {node_name} needs {', '.join(sorted(missing))}: pass them as inputs or state")
    return NodeMath(dims, weights, dtype).run(spec, inputs, state, position)
