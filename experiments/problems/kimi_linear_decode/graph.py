"""The stage graph of the Kimi-Linear decode step: nodes, tensors, and the splits each stage allows.

Bytes count what a step must move once (int4 weights with bf16 scale and zero, state read and written, cache rows);
flops count two per multiply-add. Both follow docs/contract.md, section 1.
"""

from __future__ import annotations

from sandbox.graph import Node, PortBox, Segment, Sharding, StageGraph, TensorDecl

from .definition import Dims

READ = PortBox()
WHOLE_OWN = PortBox(mode="own")
COLUMN_TILES = (128, 64, 32, 16)


def w4_bytes(k: int, n: int) -> int:
    """Bytes of one quantised matrix [k, n]: nibbles, bf16 scale and bf16 zero per 128 rows."""
    return k * n // 2 + 4 * (k // 128) * n


class _Builder:
    """Collects tensors and nodes of one graph."""

    def __init__(self, dims: Dims) -> None:
        self.d = dims
        self.tensors: dict[str, TensorDecl] = {}
        self.nodes: list[Node] = []

    def tensor(self, name: str, axes: str, *shape: int, dtype: str = "f32", role: str = "edge") -> str:
        self.tensors[name] = TensorDecl.model_validate(
            {"name": name, "axes": tuple(axes.split()), "shape": shape, "dtype": dtype, "role": role}
        )
        return name

    def node(
        self,
        name: str,
        kind: str,
        layer: int,
        shardings: list[Sharding],
        *,
        inputs: dict[str, str] | None = None,
        outputs: dict[str, str] | None = None,
        states: dict[str, str] | None = None,
        dims: dict[str, int] | None = None,
        nbytes: int = 0,
        flops: int = 0,
    ) -> None:
        self.nodes.append(
            Node(
                name=name, kind=kind, layer=layer, inputs=inputs or {}, outputs=outputs or {}, states=states or {},
                shardings={s.name: s for s in shardings}, dims=dims or {}, bytes=nbytes, flops=flops,
            )
        )  # fmt: skip

    # -- stages that several layers share ------------------------------------------------------------------

    def norm(self, layer: int, name: str, h_in: str, ys: list[str], weight: str, h: str, x: str) -> None:
        """`add_norm`: h = h_in + sum(ys), x = rmsnorm(h) * weight. Not split: every block may repeat it."""
        c = self.d.hidden
        inputs = {"h_in": h_in} | {f"y{j}": y for j, y in enumerate(ys)}
        outputs = {"h": h, "x": x}
        boxes = dict.fromkeys(inputs, READ) | dict.fromkeys(outputs, WHOLE_OWN)
        segment = Segment(tensor=weight, form="bf16", rows=1, cols=c, k=1, n=c)
        whole = Sharding(name="whole", items=1, boxes=boxes, segments=(segment,), units=1, dims={"C": c})
        self.node(f"L{layer}.{name}", "add_norm", layer, [whole], inputs=inputs, outputs=outputs,
                  dims={"NY": len(ys)}, nbytes=2 * c, flops=4 * c)  # fmt: skip

    def linear_columns(self, prefix: str, k: int, n: int, x_box: int = 0) -> Sharding:
        """A quantised linear split by output columns."""
        tile = next(t for t in COLUMN_TILES if n % t == 0)
        return Sharding(
            name="columns", items=n // tile, units=n // tile, period=n // tile, dims={"K": k, "N": tile},
            boxes={"x": PortBox(size=x_box), "y": PortBox(size=tile, mode="own")},
            segments=(Segment(tensor=prefix, form="w4", rows=k, cols=n, k=k, n=tile, n_stride=tile),),
        )  # fmt: skip

    def o_proj(self, i: int) -> None:
        d = self.d
        k, n = d.heads * d.v_dim, d.hidden
        prefix = f"blocks.{i}.attn.o_proj"
        rows = Sharding(
            name="rows", items=d.heads, units=d.heads, period=d.heads, dims={"K": d.v_dim, "N": n},
            boxes={"x": PortBox(size=d.v_dim), "y": PortBox(mode="add")},
            segments=(Segment(tensor=prefix, form="w4", rows=k, cols=n, k=d.v_dim, k_stride=d.v_dim, n=n),),
        )  # fmt: skip
        self.node(f"L{i}.o_proj", "linear_w4", i, [self.linear_columns(prefix, k, n), rows],
                  inputs={"x": f"L{i}.o"}, outputs={"y": self.tensor(f"L{i}.y", "c", n)},
                  nbytes=w4_bytes(k, n), flops=2 * k * n)  # fmt: skip

    # -- the three kinds of block ----------------------------------------------------------------------------

    def kda(self, i: int, h_in: str, ys: list[str]) -> None:
        d = self.d
        c, heads, hd = d.hidden, d.heads, d.head_dim
        h, x = self.tensor(f"L{i}.h", "c", c), self.tensor(f"L{i}.x", "c", c)
        a = f"blocks.{i}.attn"
        self.norm(i, "attn_norm", h_in, ys, f"blocks.{i}.attn_norm", h, x)
        qkvg = self.tensor(f"L{i}.qkvg", "head m d", heads, 4, hd)
        heads_split = Sharding(
            name="heads", items=heads, units=heads, period=heads, dims={"K": c, "N": 4 * hd},
            boxes={"x": READ, "y": PortBox(size=4 * hd, mode="own")},
            segments=tuple(
                Segment(tensor=f"{a}.{p}_proj", form="w4", rows=c, cols=heads * hd, k=c, n=hd, n_stride=hd) for p in ("q", "k", "v", "g")
            ),
        )  # fmt: skip
        self.node(f"L{i}.qkvg", "linear_w4", i, [heads_split], inputs={"x": x}, outputs={"y": qkvg},
                  nbytes=4 * w4_bytes(c, heads * hd), flops=8 * c * heads * hd)  # fmt: skip
        beta = self.tensor(f"L{i}.beta", "head", heads)
        self.linear_bf16(i, "beta", f"{a}.beta_proj.weight", x, beta, c, heads)
        qkv = self.tensor(f"L{i}.qkv", "head m d", heads, 3, hd)
        windows = {w: self.tensor(f"blocks.{i}.{w}", "tap c", 3, heads * hd, dtype="bf16", role="state") for w in ("cq", "ck", "cv")}
        conv = Sharding(
            name="heads", items=heads, units=heads, period=heads, dims={"D": hd, "CH": heads * hd},
            boxes={"y": PortBox(size=4 * hd), "qkv": PortBox(size=3 * hd, mode="own")}
            | {w: PortBox(size=hd, rows=3, stride=heads * hd, mode="state") for w in windows},
            segments=(Segment(tensor=f"{a}.conv_w", form="raw", rows=3, cols=heads * hd * 4, k=1, n=hd, n_stride=hd),),
        )  # fmt: skip
        self.node(f"L{i}.conv", "short_conv", i, [conv], inputs={"y": qkvg}, outputs={"qkv": qkv}, states=windows,
                  nbytes=3 * heads * hd * (8 + 12), flops=24 * heads * hd)  # fmt: skip
        s = self.tensor(f"blocks.{i}.S", "head k v", heads, hd, hd, role="state")
        o = self.tensor(f"L{i}.o", "head v", heads, hd)
        state = Sharding(
            name="heads", items=heads, dims={"D": hd},
            boxes={"qkvg": PortBox(size=4 * hd), "qkv": PortBox(size=3 * hd), "beta": PortBox(size=1),
                   "S": PortBox(size=hd * hd, mode="state"), "o": PortBox(size=hd, mode="own")},
        )  # fmt: skip
        self.node(f"L{i}.kda_state", "kda_state", i, [state], inputs={"qkvg": qkvg, "qkv": qkv, "beta": beta},
                  outputs={"o": o}, states={"S": s}, nbytes=8 * heads * hd * hd, flops=8 * heads * hd * hd)  # fmt: skip
        self.o_proj(i)

    def mla(self, i: int, h_in: str, ys: list[str]) -> None:
        d = self.d
        c, heads, lora, nope, rope, vd = d.hidden, d.heads, d.kv_lora, d.nope, d.rope, d.v_dim
        h, x = self.tensor(f"L{i}.h", "c", c), self.tensor(f"L{i}.x", "c", c)
        a = f"blocks.{i}.attn"
        self.norm(i, "attn_norm", h_in, ys, f"blocks.{i}.attn_norm", h, x)
        qd = nope + rope
        q = self.tensor(f"L{i}.q", "head qd", heads, qd)
        q_heads = Sharding(
            name="heads", items=heads, units=heads, period=heads, dims={"K": c, "N": qd},
            boxes={"x": READ, "y": PortBox(size=qd, mode="own")},
            segments=(Segment(tensor=f"{a}.q_proj", form="w4", rows=c, cols=heads * qd, k=c, n=qd, n_stride=qd),),
        )  # fmt: skip
        self.node(f"L{i}.q", "linear_w4", i, [q_heads], inputs={"x": x}, outputs={"y": q},
                  nbytes=w4_bytes(c, heads * qd), flops=2 * c * heads * qd)  # fmt: skip
        kva = self.tensor(f"L{i}.kva", "r", lora + rope)
        self.node(f"L{i}.kv_a", "linear_w4", i, [self.linear_columns(f"{a}.kv_a", c, lora + rope)],
                  inputs={"x": x}, outputs={"y": kva}, nbytes=w4_bytes(c, lora + rope),
                  flops=2 * c * (lora + rope))  # fmt: skip
        latent, kr = self.tensor(f"L{i}.latent", "r", lora), self.tensor(f"L{i}.kr", "p", rope)
        whole = Sharding(name="whole", items=1, dims={"LORA": lora, "ROPE": rope},
                         boxes={"kva": READ, "latent": WHOLE_OWN, "kr": WHOLE_OWN})  # fmt: skip
        self.node(f"L{i}.rope", "rope", i, [whole], inputs={"kva": kva}, outputs={"latent": latent, "kr": kr}, flops=6 * rope)
        ckv = self.tensor(f"blocks.{i}.c_kv", "row r", d.context, lora, dtype="bf16", role="state")
        krope = self.tensor(f"blocks.{i}.k_rope", "row p", d.context, rope, dtype="bf16", role="state")
        append = Sharding(name="whole", items=1, dims={"LORA": lora, "ROPE": rope},
                          boxes={"latent": READ, "kr": READ, "c_kv": PortBox(size=lora, mode="append"),
                                 "k_rope": PortBox(size=rope, mode="append")})  # fmt: skip
        self.node(f"L{i}.append", "append", i, [append], inputs={"latent": latent, "kr": kr},
                  states={"c_kv": ckv, "k_rope": krope}, nbytes=2 * (lora + rope))  # fmt: skip
        qa, qr = self.tensor(f"L{i}.qa", "head r", heads, lora), self.tensor(f"L{i}.qr", "head p", heads, rope)
        absorb = Sharding(
            name="heads", items=heads, units=heads, period=heads, dims={"NOPE": nope, "ROPE": rope, "LORA": lora},
            boxes={"q": PortBox(size=qd), "qa": PortBox(size=lora, mode="own"), "qr": PortBox(size=rope, mode="own")},
            segments=(Segment(tensor=f"{a}.kv_b", form="w4", rows=lora, cols=heads * (nope + vd), k=lora, n=nope, n_stride=nope + vd),),
        )  # fmt: skip
        self.node(f"L{i}.absorb", "absorb", i, [absorb], inputs={"q": q}, outputs={"qa": qa, "qr": qr},
                  nbytes=w4_bytes(lora, heads * nope), flops=2 * lora * heads * nope)  # fmt: skip
        ctx = self.tensor(f"L{i}.ctx", "head r", heads, lora)
        attend = Sharding(
            name="heads", items=heads, dims={"LORA": lora, "ROPE": rope, "QK": nope + rope},
            boxes={"qa": PortBox(size=lora), "qr": PortBox(size=rope), "latent": READ, "kr": READ,
                   "c_kv": READ, "k_rope": READ, "ctx": PortBox(size=lora, mode="own")},
        )  # fmt: skip
        group = next(g for g in (16, 8, 4, 2, 1) if heads % g == 0 and heads // g >= 2)
        grouped = attend.model_copy(update={
            "name": "head_groups", "items": heads // group, "dims": attend.dims | {"GROUP": group},
            "boxes": {p: b.model_copy(update={"size": b.size * group}) for p, b in attend.boxes.items()},
        })  # fmt: skip
        attend = attend.model_copy(update={"dims": attend.dims | {"GROUP": 1}})
        self.node(f"L{i}.attend", "attend", i, [attend, grouped],
                  inputs={"qa": qa, "qr": qr, "latent": latent, "kr": kr, "c_kv": ckv, "k_rope": krope},
                  outputs={"ctx": ctx}, nbytes=2 * d.context * (lora + rope),
                  flops=2 * (d.context + 1) * heads * (2 * lora + rope))  # fmt: skip
        o = self.tensor(f"L{i}.o", "head v", heads, vd)
        wv = Sharding(
            name="heads", items=heads, units=heads, period=heads, dims={"K": lora, "N": vd},
            boxes={"x": PortBox(size=lora), "y": PortBox(size=vd, mode="own")},
            segments=(Segment(tensor=f"{a}.kv_b", form="w4", rows=lora, cols=heads * (nope + vd), k=lora, n=vd, n0=nope, n_stride=nope + vd),),
        )  # fmt: skip
        self.node(f"L{i}.wv", "linear_w4", i, [wv], inputs={"x": ctx}, outputs={"y": o},
                  nbytes=w4_bytes(lora, heads * vd), flops=2 * lora * heads * vd)  # fmt: skip
        self.o_proj(i)

    def linear_bf16(self, i: int, name: str, weight: str, x: str, y: str, k: int, n: int) -> None:
        """A small bf16 linear [n, k]: whole (every block may repeat it) or split by output rows."""
        per = next(p for p in (4, 2, 1) if n % p == 0)
        splits = [
            Sharding(name=split, items=n // m, units=n // m, period=n // m, dims={"K": k, "N": m},
                     boxes={"x": READ, "y": PortBox(size=0 if m == n else m, mode="own")},
                     segments=(Segment(tensor=weight, form="bf16", rows=n, cols=k, k=k, n=m, n_stride=m),))
            for split, m in (("whole", n), ("rows", per))
        ]  # fmt: skip
        self.node(f"L{i}.{name}", "linear_bf16", i, splits, inputs={"x": x}, outputs={"y": y},
                  nbytes=2 * k * n, flops=2 * k * n)  # fmt: skip

    def moe(self, i: int) -> list[str]:
        d = self.d
        c, f, e, t = d.hidden, d.ffn, d.experts, d.top_k
        m = f"blocks.{i}.moe"
        h2, x2 = self.tensor(f"L{i}.h2", "c", c), self.tensor(f"L{i}.x2", "c", c)
        self.norm(i, "moe_norm", f"L{i}.h", [f"L{i}.y"], f"blocks.{i}.moe_norm", h2, x2)
        logits = self.tensor(f"L{i}.logits", "e", e)
        self.linear_bf16(i, "router", f"{m}.router.weight", x2, logits, c, e)
        ids, w = self.tensor(f"L{i}.ids", "t", t, dtype="i32"), self.tensor(f"L{i}.w", "t", t)
        top = Sharding(name="whole", items=1, dims={"E": e, "T": t},
                       boxes={"logits": READ, "ids": WHOLE_OWN, "w": WHOLE_OWN})  # fmt: skip
        self.node(f"L{i}.topk", "topk", i, [top], inputs={"logits": logits}, outputs={"ids": ids, "w": w}, flops=4 * e)
        tiles = f // 128
        for name, slots, experts in (("", t, e), ("s_", 1, 1)):
            act = self.tensor(f"L{i}.sact" if name else f"L{i}.act", "f" if name else "t f", *((f,) if name else (t, f)))
            y = self.tensor(f"L{i}.ys" if name else f"L{i}.yr", "c", c)
            routed = not name
            up = Sharding(
                name="slices", items=slots * tiles, units=experts * tiles, period=tiles, selects="ids" if routed else "",
                dims={"K": c, "N": 256}, boxes={"x": READ, "act": PortBox(size=128, mode="own")} | ({"ids": READ} if routed else {}),
                segments=tuple(Segment(tensor=f"{m}.{name}{p}", form="w4", rows=c, cols=f, k=c, n=128, n_stride=128) for p in ("gate", "up")),
            )  # fmt: skip
            self.node(f"L{i}.{name}up", "expert_up", i, [up], inputs={"x": x2} | ({"ids": ids} if routed else {}),
                      outputs={"act": act}, nbytes=slots * 2 * w4_bytes(c, f), flops=slots * 4 * c * f)  # fmt: skip
            down = Sharding(
                name="slices", items=slots * tiles, units=experts * tiles, period=tiles, selects="ids" if routed else "",
                dims={"K": 128, "N": c},
                boxes={"x": PortBox(size=128), "y": PortBox(mode="add")} | ({"ids": READ, "w": READ} if routed else {}),
                segments=(Segment(tensor=f"{m}.{name}down", form="w4", rows=f, cols=c, k=128, k_stride=128, n=c),),
            )  # fmt: skip
            self.node(f"L{i}.{name}down", "expert_down" if routed else "linear_w4", i, [down],
                      inputs={"x": act} | ({"ids": ids, "w": w} if routed else {}), outputs={"y": y},
                      nbytes=slots * w4_bytes(f, c), flops=slots * 2 * c * f)  # fmt: skip
        return [f"L{i}.yr", f"L{i}.ys"]


def build_graph(dims: Dims) -> StageGraph:
    """The stage graph of one decode step for these sizes."""
    b = _Builder(dims)
    h_in = b.tensor("token", "c", dims.hidden, dtype="bf16", role="input")
    ys: list[str] = []
    for i, kind in enumerate(dims.layers):
        (b.kda if kind == "kda" else b.mla)(i, h_in, ys)
        if dims.moe:
            ys = b.moe(i)
            h_in = f"L{i}.h2"
        else:
            h_in, ys = f"L{i}.h", [f"L{i}.y"]
    hidden = b.tensor("hidden", "c", dims.hidden, dtype="bf16", role="output")
    inputs = {"h_in": h_in} | {f"y{j}": y for j, y in enumerate(ys)}
    whole = Sharding(name="whole", items=1, boxes=dict.fromkeys(inputs, READ) | {"hidden": WHOLE_OWN}, dims={"C": dims.hidden})
    b.node("emit", "emit", len(dims.layers) - 1, [whole], inputs=inputs, outputs={"hidden": hidden},
           dims={"NY": len(ys)}, nbytes=4 * dims.hidden)  # fmt: skip
    return StageGraph(name=f"kimi_linear_decode/{'-'.join(dims.layers)}/{dims.hidden}", tensors=b.tensors, nodes=tuple(b.nodes))
