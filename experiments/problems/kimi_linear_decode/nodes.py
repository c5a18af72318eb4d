"""The nodes of the stage graph: names, edges, and each node's exact mathematics.

Edges are ``dict[str, Tensor]`` entries named as in the stage graph (``L0.x``, ``L3.ctx``, ...); the axis that a
plan would shard leads. What the names alone do not say:

- ``L{i}.beta`` and the gate slot (m = 3) of ``L{i}.qkvg`` are raw logits; sigmoid and -softplus are taken in
  ``kda_state``. The q slot of ``L{i}.qkv`` is not yet scaled by head_dim^-0.5.
- ``L{i}.ids`` is sorted by falling logit; ``L{i}.w`` includes the route scale.
- ``attend`` reads cached rows below `position` and takes the new row from its edges ``latent`` and ``kr``, so it
  does not depend on ``append`` having run.
- The residual is summed where it is next needed: ``attn_norm`` of block i + 1, ``moe_norm`` and ``emit``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .definition import WINDOWS, Dims
from .quant import Dequantiser

Edges = dict[str, Tensor]


@dataclass(frozen=True)
class NodeSpec:
    """One node: full edge names in and out, state tensors read and written, weight names or prefixes."""

    name: str
    kind: str
    layer: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()


def residual_terms(dims: Dims, layer: int) -> tuple[str, ...]:
    """Edges whose sum is the residual entering block `layer` (= the output, for ``len(dims.layers)``)."""
    if layer == 0:
        return ("token",)
    before = f"L{layer - 1}."
    return tuple(before + e for e in (("h2", "yr", "ys") if dims.moe else ("h", "y")))


# kind: (inputs, outputs, states read, states written, weights below the attention or MoE module)
_KDA = {
    "qkvg": ("x", "qkvg", "", "", "q_proj k_proj v_proj g_proj"),
    "beta": ("x", "beta", "", "", "beta_proj.weight"),
    "conv": ("qkvg", "qkv", "cq ck cv", "cq ck cv", "conv_w"),
    "kda_state": ("qkv qkvg beta", "o", "S", "S", ""),
    "o_proj": ("o", "y", "", "", "o_proj"),
}
_MLA = {
    "q": ("x", "q", "", "", "q_proj"),
    "kv_a": ("x", "kva", "", "", "kv_a"),
    "rope": ("kva", "latent kr", "", "", ""),
    "append": ("latent kr", "", "", "c_kv k_rope", ""),
    "absorb": ("q", "qa qr", "", "", "kv_b"),
    "attend": ("qa qr latent kr", "ctx", "c_kv k_rope", "", ""),
    "wv": ("ctx", "o", "", "", "kv_b"),
    "o_proj": ("o", "y", "", "", "o_proj"),
}
_MOE = {
    "router": ("x2", "logits", "", "", "router.weight"),
    "topk": ("logits", "ids w", "", "", ""),
    "up": ("x2 ids", "act", "", "", "gate up"),
    "down": ("act ids w", "yr", "", "", "down"),
    "s_up": ("x2", "sact", "", "", "s_gate s_up"),
    "s_down": ("sact", "ys", "", "", "s_down"),
}


def node_specs(dims: Dims) -> list[NodeSpec]:
    """All nodes in an order that can be executed."""
    nodes: list[NodeSpec] = []
    for i, attention in enumerate(dims.layers):
        edge, block = f"L{i}.", f"blocks.{i}."

        def add(kind: str, row: tuple[str, str, str, str, str], module: str, i: int = i, edge: str = edge, block: str = block) -> None:
            def names(words: str, prefix: str) -> tuple[str, ...]:
                return tuple(prefix + word for word in words.split())

            nodes.append(
                NodeSpec(
                    edge + kind,
                    kind,
                    i,
                    names(row[0], edge),
                    names(row[1], edge),
                    names(row[2], block),
                    names(row[3], block),
                    names(row[4], block + module),
                )
            )

        nodes.append(
            NodeSpec(edge + "attn_norm", "attn_norm", i, residual_terms(dims, i), (edge + "h", edge + "x"), weights=(block + "attn_norm",))
        )
        for kind, row in (_KDA if attention == "kda" else _MLA).items():
            add(kind, row, "attn.")
        if dims.moe:
            add("moe_norm", ("h y", "h2 x2", "", "", "moe_norm"), "")
            for kind, row in _MOE.items():
                add(kind, row, "moe.")
    last = len(dims.layers)
    nodes.append(NodeSpec("emit", "emit", last - 1, residual_terms(dims, last), ("hidden",)))
    return nodes


def rotate_pairs(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of the last axis in interleaved pairs (2j, 2j + 1), angle position * theta^(-2j/n)."""
    n = x.shape[-1]
    # The angles are made in float64 for every working dtype: they are part of the truth.
    angles = position * theta ** (-torch.arange(0, n, 2, dtype=torch.float64, device=x.device) / n)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def append_row(cache: Tensor, row: Tensor, position: int) -> Tensor:
    """A copy of `cache` with `row` at index `position`, one row longer if the cache was just full."""
    if position > cache.shape[0]:
        raise ValueError(
            f"position {position} is beyond the {cache.shape[0]} cached rows: append rows in order, or pass a state with more rows"
        )
    return torch.cat((cache[:position], row[None], cache[position + 1 :]))


class NodeMath:
    """Executes nodes in `dtype` without any rounding of its own beyond that dtype.

    No tensor that the caller passed is written to: changed states are new tensors.
    """

    def __init__(self, dims: Dims, weights: Mapping[str, Tensor], dtype: torch.dtype, cache_bytes: int = 0) -> None:
        self.dims = dims
        self.dtype = dtype
        self.linears = Dequantiser(weights, dtype, cache_bytes)

    def run(self, spec: NodeSpec, inputs: Mapping[str, Tensor], state: Mapping[str, Tensor], position: int) -> Edges:
        """Outputs and changed states of one node, by full name, from edges and states of any float dtype."""
        edges = {name: t if t.dtype in (torch.int32, torch.int64) else t.to(self.dtype) for name, t in inputs.items()}
        own = f"L{spec.layer}."
        local = {name.removeprefix(own): t for name, t in edges.items() if name.startswith(own)}
        block = f"blocks.{spec.layer}."
        states = {name: state[block + name].to(self.dtype) for name in {full.removeprefix(block) for full in spec.reads + spec.writes}}
        i = spec.layer
        with torch.no_grad():
            match spec.kind:
                case "attn_norm" | "emit":
                    made = self._residual(spec, edges, local)
                case "moe_norm":
                    h2 = local["h"] + local["y"]
                    made = {"h2": h2, "x2": self._norm(h2, f"blocks.{i}.moe_norm")}
                case "append":
                    made = {
                        "c_kv": append_row(states["c_kv"], local["latent"], position),
                        "k_rope": append_row(states["k_rope"], local["kr"], position),
                    }
                case "rope":
                    made = self._rope(local, position)
                case "absorb":
                    made = self._absorb(f"blocks.{i}.attn", local, position)
                case "attend":
                    made = {"ctx": self._attend(local, states, position)}
                case "router" | "topk" | "up" | "down" | "s_up" | "s_down":
                    made = self._moe(spec.kind, f"blocks.{i}.moe", local)
                case _:
                    made = self._attention(spec.kind, f"blocks.{i}.attn", local, states)
        prefix = {"emit": ""}.get(spec.kind, own)
        changed = {full.removeprefix(block) for full in spec.writes}
        return {(block if name in changed else prefix) + name: t for name, t in made.items()}

    def _linear(self, x: Tensor, prefix: str, expert: int = -1) -> Tensor:
        return x @ self.linears.matrix(prefix, expert)

    def _norm(self, x: Tensor, weight: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean() + self.dims.eps) * self.linears.plain(weight)

    def _residual(self, spec: NodeSpec, edges: Edges, local: Edges) -> Edges:
        h = local.get("h")
        if h is None or spec.kind == "emit":
            h = sum((edges[name] for name in spec.inputs[1:]), start=edges[spec.inputs[0]])
        if spec.kind == "emit":
            return {"hidden": h}
        return {"h": h, "x": self._norm(h, f"blocks.{spec.layer}.attn_norm")}

    def _attention(self, kind: str, attn: str, e: Edges, states: Edges) -> Edges:
        dims = self.dims
        match kind:
            case "qkvg":
                parts = [self._linear(e["x"], f"{attn}.{p}_proj").view(dims.heads, -1) for p in "qkvg"]
                return {"qkvg": torch.stack(parts, dim=1)}
            case "beta":
                return {"beta": self.linears.plain(f"{attn}.beta_proj.weight") @ e["x"]}
            case "conv":
                return self._conv(attn, e, states)
            case "kda_state":
                return self._kda_state(e, states)
            case "o_proj":
                return {"y": self._linear(e["o"].reshape(-1), f"{attn}.o_proj")}
            case "q":
                return {"q": self._linear(e["x"], f"{attn}.q_proj").view(dims.heads, -1)}
            case "kv_a":
                return {"kva": self._linear(e["x"], f"{attn}.kv_a")}
            case "wv":
                return {"o": torch.einsum("hc,chv->hv", e["ctx"], self.kv_b(attn)[1])}
        raise ValueError(f"unknown node kind {kind!r}: node_specs lists the known ones")

    def kv_b(self, attn: str) -> tuple[Tensor, Tensor]:
        """The key and value halves of kv_b as [kv_lora, head, nope] and [kv_lora, head, v_dim]."""
        both = self.linears.matrix(f"{attn}.kv_b").view(self.dims.kv_lora, self.dims.heads, -1)
        return both[..., : self.dims.nope], both[..., self.dims.nope :]

    def _conv(self, attn: str, e: Edges, states: Edges) -> Edges:
        taps = self.linears.plain(f"{attn}.conv_w")
        made: Edges = {}
        mixed = []
        for m, name in enumerate(WINDOWS):
            rows = torch.cat((states[name], e["qkvg"][:, m].reshape(1, -1)))
            mixed.append(functional.silu((rows * taps[m].T).sum(0)).view(self.dims.heads, -1))
            made[name] = rows[1:]
        made["qkv"] = torch.stack(mixed, dim=1)
        return made

    def _kda_state(self, e: Edges, states: Edges) -> Edges:
        q, k, v = e["qkv"].unbind(1)
        decay = torch.exp(-functional.softplus(e["qkvg"][:, 3]))
        s = states["S"] * decay[..., None]
        delta = torch.sigmoid(e["beta"])[:, None] * (v - torch.einsum("hkv,hk->hv", s, k))
        s = s + k[..., None] * delta[:, None]
        o = torch.einsum("hkv,hk->hv", s, q * self.dims.head_dim**-0.5)
        return {"S": s, "o": o}

    def _rope(self, e: Edges, position: int) -> Edges:
        dims = self.dims
        return {"latent": e["kva"][: dims.kv_lora], "kr": rotate_pairs(e["kva"][dims.kv_lora :], position, dims.theta)}

    def _absorb(self, attn: str, e: Edges, position: int) -> Edges:
        dims = self.dims
        return {
            "qa": torch.einsum("hd,chd->hc", e["q"][:, : dims.nope], self.kv_b(attn)[0]),
            "qr": rotate_pairs(e["q"][:, dims.nope :], position, dims.theta),
        }

    def _attend(self, e: Edges, states: Edges, position: int) -> Tensor:
        rows = append_row(states["c_kv"], e["latent"], position)[: position + 1]
        keys = append_row(states["k_rope"], e["kr"], position)[: position + 1]
        scores = (e["qa"] @ rows.T + e["qr"] @ keys.T) * self.dims.q_dim**-0.5
        return torch.softmax(scores, dim=-1) @ rows

    def _moe(self, kind: str, moe: str, e: Edges) -> Edges:
        match kind:
            case "router":
                return {"logits": self.linears.plain(f"{moe}.router.weight") @ e["x2"]}
            case "topk":
                p, ids = torch.softmax(e["logits"], dim=-1).topk(self.dims.top_k)
                return {"ids": ids.int(), "w": p / (p.sum() + 1e-9) * self.dims.route_scale}
            case "up":
                acts = [self._gated(e["x2"], moe, "gate", "up", expert) for expert in e["ids"].tolist()]
                return {"act": torch.stack(acts)}
            case "down":
                outs = [self._linear(act, f"{moe}.down", expert) for act, expert in zip(e["act"], e["ids"].tolist(), strict=True)]
                return {"yr": e["w"] @ torch.stack(outs)}
            case "s_up":
                return {"sact": self._gated(e["x2"], moe, "s_gate", "s_up", -1)}
        return {"ys": self._linear(e["sact"], f"{moe}.s_down")}

    def _gated(self, x: Tensor, moe: str, gate: str, up: str, expert: int) -> Tensor:
        return functional.silu(self._linear(x, f"{moe}.{gate}", expert)) * self._linear(x, f"{moe}.{up}", expert)
