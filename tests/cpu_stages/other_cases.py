"""Cases of the CPU stage tests: sizes, ports, inputs, and the float64 truth in numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NUMPY = {"float": np.float32, "kb::bf16": np.uint16, "int32_t": np.int32}


@dataclass(frozen=True)
class Port:
    """One port: `size` elements in all (per cached row if `dynamic`), `box` of them per item (0: whole)."""

    name: str
    mode: str  # read, sum, own, state
    size: int
    box: int = 0
    ctype: str = "float"
    rows: int = 1
    stride: int = 0
    copies: int = 1
    dynamic: bool = False

    @property
    def numpy_type(self) -> Any:
        """Storage type; bf16 is uint16."""
        return NUMPY[self.ctype]


@dataclass(frozen=True)
class Case:
    """One stage at one size and sharding. `segment`: rows, cols, k0, k, k_stride, n0, n, n_stride."""

    name: str
    kind: str
    dims: tuple[tuple[str, int], ...]
    ports: tuple[Port, ...]
    items: int = 1
    units: int = 0
    period: int = 1
    segment: tuple[int, ...] = (0,) * 8
    weight_size: int = 0
    unit_floats: int = 0
    positions: tuple[int, ...] = (3,)
    bench: bool = False
    implementation: str = ""  # of its kind, if it is not the first
    limit: float = 0.0  # relative RMS error, where an implementation rounds on purpose

    @property
    def source(self) -> str:
        """Which sources make it."""
        return self.implementation or self.kind

    def __getitem__(self, name: str) -> int:
        return dict(self.dims)[name]


def _residual(kind: str, c: int, token: bool, bench: bool = False) -> Case:
    ys = () if token else (Port("y0", "read", c), Port("y1", "sum", c, copies=4))
    h_in = Port("h_in", "read", c, ctype="kb::bf16" if token else "float")
    if kind == "emit":
        return Case(f"emit-{c}", kind, (("C", c), ("NY", len(ys))), (h_in, *ys, Port("hidden", "own", c, ctype="kb::bf16")), bench=bench)
    return Case(
        f"add_norm-{c}",
        kind,
        (("C", c), ("NY", len(ys))),
        (h_in, *ys, Port("h", "own", c), Port("x", "own", c)),
        units=1,
        segment=(1, c, 0, 1, 0, 0, c, 0),
        weight_size=c,
        unit_floats=c,
        bench=bench,
    )


def _linear(k: int, n: int, per: int, copies: int = 1, bench: bool = False) -> Case:
    x = Port("x", "sum" if copies > 1 else "read", k, copies=copies)
    # B16 counts outputs in n: `n` rows of the matrix from n0
    return Case(
        f"linear_bf16-{k}x{n}-{per}",
        "linear_bf16",
        (("K", k), ("N", per)),
        (x, Port("y", "own", n, 0 if per == n else per)),
        items=n // per,
        units=n // per,
        period=n // per,
        segment=(n, k, 0, k, 0, 0, per, per),
        weight_size=n * k,
        unit_floats=per * k,
        bench=bench,
    )


def _conv(heads: int, bench: bool = False) -> Case:
    d, ch = 128, heads * 128
    windows = tuple(Port(w, "state", 3 * ch, d, "kb::bf16", rows=3, stride=ch) for w in ("cq", "ck", "cv"))
    return Case(
        f"short_conv-{heads}",
        "short_conv",
        (("D", d), ("CH", ch)),
        (Port("y", "read", 4 * ch, 4 * d), Port("qkv", "own", 3 * ch, 3 * d), *windows),
        items=heads,
        units=heads,
        period=heads,
        segment=(3, ch * 4, 0, 1, 0, 0, d, d),
        weight_size=12 * ch,
        unit_floats=12 * d,
        bench=bench,
    )


def _kda(heads: int, bench: bool = False, cols: int = 0, two_pass: bool = False) -> Case:
    d = 128
    name = f"{'two_pass' if two_pass else 'kda_state'}-{heads}" + (f"-{cols}" if cols else "")
    return Case(name, "kda_state", (("D", d), ("COLS", cols)),
                (Port("qkvg", "read", heads * 4 * d, 4 * d), Port("qkv", "read", heads * 3 * d, 3 * d), Port("beta", "read", heads, 1),
                 Port("o", "own", heads * d, d), Port("S", "state", heads * d * d, d * d)), items=heads, bench=bench,
                implementation="kda_two_pass" if two_pass else "")  # fmt: skip


def _attend(heads: int, group: int, lora: int, positions: tuple[int, ...], bench: bool = False, *, block: int = 72) -> Case:
    rope = 64
    name = f"attend-{lora}-{heads}by{group}" + (f"-B{block}" if block != 72 else "")
    return Case(name, "attend", (("LORA", lora), ("ROPE", rope), ("QK", 192), ("GROUP", group), ("BLOCK", block)),
                (Port("qa", "read", heads * lora, group * lora), Port("qr", "read", heads * rope, group * rope),
                 Port("latent", "read", lora), Port("kr", "read", rope),
                 Port("c_kv", "read", lora, ctype="kb::bf16", dynamic=True), Port("k_rope", "read", rope, ctype="kb::bf16", dynamic=True),
                 Port("ctx", "own", heads * lora, group * lora)), items=heads // group, positions=positions, bench=bench)  # fmt: skip


# relative RMS error of attend-bf16 by (LEVELS, PLEVELS): what is rounded to 8 bits, and what keeps 16
ROUNDED = {(1, 1): 6e-3, (1, 2): 6e-3, (2, 1): 3e-3, (2, 2): 3e-5}


def _attend_bf16(heads: int, group: int, lora: int, positions: tuple[int, ...], levels: int, weights: int, block: int = 64, ahead: int = 64,
                 bench: bool = False) -> Case:  # fmt: skip
    plain = _attend(heads, group, lora, positions, bench, block=block)
    return replace(plain, name=f"attend-{lora}-{heads}by{group}-L{levels}P{weights}B{block}A{ahead}", implementation="attend_bf16",
                   dims=(*plain.dims, ("LEVELS", levels), ("PLEVELS", weights), ("AHEAD", ahead)), limit=ROUNDED[levels, weights])  # fmt: skip


def _rope(kind: str, lora: int, positions: tuple[int, ...], bench: bool = False) -> Case:
    dims = (("LORA", lora), ("ROPE", 64))
    if kind == "rope":
        ports: tuple[Port, ...] = (Port("kva", "read", lora + 64), Port("latent", "own", lora), Port("kr", "own", 64))
    else:
        ports = (
            Port("latent", "read", lora),
            Port("kr", "read", 64),
            Port("c_kv", "state", lora, ctype="kb::bf16"),
            Port("k_rope", "state", 64, ctype="kb::bf16"),
        )
    return Case(f"{kind}-{lora}", kind, dims, ports, positions=positions, bench=bench)


def _topk(e: int, t: int, bench: bool = False) -> Case:
    ports = (Port("logits", "read", e), Port("ids", "own", t, ctype="int32_t"), Port("w", "own", t))
    return Case(f"topk-{e}", "topk", (("E", e), ("T", t)), ports, bench=bench)


ROWS = (0, 1, 15, 16, 17, 48, 72, 73, 2048)
CASES: tuple[Case, ...] = (
    _residual("add_norm", 256, True), _residual("add_norm", 2304, False, True),
    _residual("emit", 256, True), _residual("emit", 2304, False, True),
    _linear(256, 8, 8), _linear(256, 6, 2), _linear(2304, 32, 4, 2), _linear(2304, 32, 32, bench=True), _linear(2304, 64, 64, bench=True),
    _linear(256, 3, 1), _conv(4), _conv(32, True), _kda(4), _kda(32, True),
    *(_kda(4, cols=cols) for cols in (16, 32, 64, 128)), *(_kda(4, cols=cols, two_pass=True) for cols in (16, 64, 128)), _kda(32, True, 32, True),
    _rope("rope", 128, (0, 1, 17, 2048, 999_983)), _rope("rope", 512, (1_000_000, 16384, 2048), True),
    _rope("append", 128, (1,)), _rope("append", 512, (1,), True),
    _attend(4, 2, 128, ROWS), _attend(2, 1, 128, ROWS), _attend(8, 4, 256, ROWS), _attend(16, 8, 256, ROWS), _attend(32, 16, 512, ROWS, True),
    _attend(32, 32, 128, (97,)), _attend(8, 8, 128, (16384,)), _attend(2, 2, 256, (16384,)), _attend(32, 1, 512, (2048,), True),
    _attend(16, 8, 256, (200,), block=48), _attend(8, 2, 256, (200,), block=96),
    _attend_bf16(2, 1, 128, ROWS, 2, 2, ahead=0), _attend_bf16(4, 2, 128, ROWS, 2, 2, 32), _attend_bf16(8, 4, 256, ROWS, 2, 2, 128, 128),
    _attend_bf16(16, 8, 256, ROWS, 2, 2), _attend_bf16(16, 8, 256, ROWS, 1, 1, 32), _attend_bf16(32, 16, 512, ROWS, 1, 1, bench=True),
    _attend_bf16(32, 16, 512, (2048,), 1, 2), _attend_bf16(32, 16, 512, (2048,), 2, 1), _attend_bf16(32, 16, 512, (2048,), 2, 2, bench=True),
    _attend_bf16(32, 32, 128, (97,), 2, 2), _attend_bf16(8, 8, 128, (16384,), 2, 2), _topk(64, 8, True), _topk(16, 4), _topk(8, 2),
)  # fmt: skip


def to_bf16(x: Array) -> Array:
    """Bits of float32 (or float64) values rounded to bf16, nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded: Array = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def widen(bits: Array) -> Array:
    """Float64 values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def make_inputs(case: Case, position: int) -> dict[str, Array]:
    """Random inputs of a case; scores of attention spread over several units, as trained ones do."""
    rng = np.random.default_rng([len(case.name), position])
    scale = {"S": 0.05, "c_kv": 0.1, "k_rope": 0.1, "cq": 0.1, "ck": 0.1, "cv": 0.1, "latent": 0.1, "kr": 0.1, "qa": 8.0, "qr": 8.0}
    inputs: dict[str, Array] = {}
    for port in case.ports:
        if port.mode == "own":
            continue
        count = port.size * port.copies * (position if port.dynamic else 1)
        x = (rng.standard_normal(count) * scale.get(port.name, 1.0)).astype(np.float32)
        inputs[port.name] = to_bf16(x) if port.ctype == "kb::bf16" else x
    if case.units:
        inputs["weight"] = to_bf16(rng.standard_normal(case.weight_size).astype(np.float32))
    return inputs


def sigmoid(x: Array) -> Array:
    """Stable logistic function."""
    return np.exp(-np.logaddexp(0.0, -x))


def _turn(x: Array, position: int) -> Array:
    angle = position * 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack((z.real, z.imag), -1).reshape(x.shape)


def expected(case: Case, inputs: dict[str, Array], position: int) -> dict[str, Array]:
    """Outputs and changed states (float64; bf16 states as bits) and the unpacked weights."""
    ports = {p.name: p for p in case.ports}
    v: dict[str, Array] = {}
    for name, x in inputs.items():
        wide = widen(x) if x.dtype == np.uint16 else x.astype(np.float64)
        v[name] = wide.reshape(ports[name].copies, -1).sum(0) if name in ports and ports[name].mode == "sum" else wide
    out: dict[str, Array] = {}
    if case.units:
        out["unpacked"] = v["weight"].astype(np.float32)
    if case.kind in ("add_norm", "emit"):
        h = v["h_in"] + sum((v[f"y{j}"] for j in range(case["NY"])), start=np.zeros(1))
        if case.kind == "emit":
            return {"hidden": h}
        return out | {"h": h, "x": h / np.sqrt(np.mean(h**2) + 1e-6) * v["weight"]}
    if case.kind == "linear_bf16":
        return out | {"y": v["weight"].reshape(-1, case["K"]) @ v["x"]}
    if case.kind == "short_conv":
        heads, d, ch = case.items, case["D"], case["CH"]
        fresh = v["y"].reshape(heads, 4, d)[:, :3].transpose(1, 0, 2).reshape(3, ch)
        rows = np.stack([np.concatenate((v[w].reshape(3, ch), fresh[m][None])) for m, w in enumerate(("cq", "ck", "cv"))])
        total = np.einsum("mtc,mct->mc", rows, v["weight"].reshape(3, ch, 4))
        out["qkv"] = (total * sigmoid(total)).reshape(3, heads, d).transpose(1, 0, 2).reshape(-1)
        for m, w in enumerate(("cq", "ck", "cv")):
            out[w] = np.concatenate((inputs[w][ch:], to_bf16(fresh[m])))
        one = out["unpacked"].reshape(3, heads, d * 4)
        return out | {"unpacked": one.transpose(1, 0, 2).reshape(-1)}
    if case.kind == "kda_state":
        heads, d = case.items, case["D"]
        q, k, value = v["qkv"].reshape(heads, 3, d).transpose(1, 0, 2)
        decay = np.exp(-np.logaddexp(0.0, v["qkvg"].reshape(heads, 4, d)[:, 3]))
        s = v["S"].reshape(heads, d, d) * decay[..., None]
        delta = sigmoid(v["beta"])[:, None] * (value - np.einsum("hkv,hk->hv", s, k))
        s = s + k[..., None] * delta[:, None]
        return {"S": s.reshape(-1), "o": np.einsum("hkv,hk->hv", s, q * d**-0.5).reshape(-1)}
    if case.kind == "rope":
        return {"latent": v["kva"][: case["LORA"]], "kr": _turn(v["kva"][case["LORA"] :], position)}
    if case.kind == "append":
        return {"c_kv": to_bf16(inputs["latent"]), "k_rope": to_bf16(inputs["kr"])}
    if case.kind == "attend":
        rows = np.concatenate((v["c_kv"].reshape(-1, case["LORA"]), v["latent"][None]))
        keys = np.concatenate((v["k_rope"].reshape(-1, case["ROPE"]), v["kr"][None]))
        scores = (v["qa"].reshape(-1, case["LORA"]) @ rows.T + v["qr"].reshape(-1, case["ROPE"]) @ keys.T) * case["QK"] ** -0.5
        p = np.exp(scores - scores.max(1, keepdims=True))
        return {"ctx": (p / p.sum(1, keepdims=True) @ rows).reshape(-1)}
    order = np.lexsort((np.arange(case["E"]), -v["logits"]))[: case["T"]]
    e = np.exp(v["logits"] - v["logits"].max())
    p = (e / e.sum())[order]
    return {"ids": order.astype(np.int32), "w": p / (p.sum() + 1e-9) * 2.446}
