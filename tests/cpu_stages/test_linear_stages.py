"""The quantised-linear stages of the cpu target, compiled for several instruction sets and run as real processes.

Every stage is asked: does unpack give back the canonical weights exactly, does the output match float64, are bad zero
points and scales refused, and does a checked build with sanitizers run through.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cpu_stages.stage_text import build, knob_values, knobs_type, program

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
TWO_LEVELS, ONE_LEVEL, SCALAR = 5e-5, 1.2e-2, 2e-6  # relative RMS errors allowed
POSITION = 1234


@dataclass(frozen=True)
class Part:
    """One segment: which rows and columns of a canonical matrix each unit takes."""

    rows: int
    cols: int
    k: int
    n: int
    k_stride: int = 0
    n0: int = 0
    n_stride: int = 0

    @property
    def text(self) -> str:
        """The C++ initialiser of kb::Segment."""
        return f"{{{self.rows}, {self.cols}, 0, {self.k}, {self.k_stride}, {self.n0}, {self.n}, {self.n_stride}}}"


@dataclass(frozen=True)
class Case:
    """One stage at one shape. `config` has KNOBS for the type of the knobs; `call` the driver call with STAGE and CONFIG."""

    name: str
    stage: str
    config: str
    call: str
    parts: tuple[Part, ...]
    items: int
    period: int
    experts: int = 1
    add: bool = False
    bf16_x: bool = False
    inputs: dict[str, int] = field(default_factory=dict)


def linear(name: str, k: int, n: int, parts: tuple[Part, ...], items: int, *, whole: bool, add: bool, bf16_x: bool = False) -> Case:
    """A linear_w4 case."""
    kind = "kb::bf16" if bf16_x else "float"
    mode = "ADD" if add else "OWN"
    config = f"LinearConfig<{k}, {n}, {len(parts)}, {str(whole).lower()}, {mode}, KNOBS, {kind}>"
    segments = ", ".join(p.text for p in parts)
    call = f"driver::linear_case<STAGE, CONFIG, {kind}>(DIR, {{{segments}}}, {items})"
    return Case(name, "linear", config, call, parts, items, items, add=add, bf16_x=bf16_x,
                inputs={"x": k if whole else k * items, "y": n if add else n * items})  # fmt: skip


def columns(name: str, k: int, n: int, items: int, *, add: bool = False, bf16_x: bool = False) -> Case:
    """A linear split by columns, x whole."""
    return linear(name, k, n, (Part(k, n * items, k, n, n_stride=n),), items, whole=True, add=add, bf16_x=bf16_x)


CASES = [
    columns("columns64", 2304, 64, 3),
    columns("columns16", 384, 16, 3),
    columns("columns32", 2432, 32, 2),
    columns("columns48_bf16", 128, 48, 2, bf16_x=True),
    linear("heads4", 256, 128, tuple(Part(256, 96, 256, 32, n_stride=32) for _ in range(4)), 3, whole=True, add=False),
    linear("rows_add", 128, 320, (Part(512, 320, 128, 320, k_stride=128),), 4, whole=False, add=True),
    linear("boxes_own", 256, 64, (Part(256, 3 * 192, 256, 64, n0=128, n_stride=192),), 3, whole=False, add=False),
    Case("expert_up", "up", "UpConfig<384, 64, 2, KNOBS>",
         "driver::up_case<STAGE, CONFIG>(DIR, {{384, 64, 0, 384, 0, 0, 32, 32}, {384, 64, 0, 384, 0, 0, 32, 32}}, 2, 4)",
         (Part(384, 64, 384, 32, n_stride=32),) * 2, 4, 2, experts=4, inputs={"x": 384, "y": 128}),
    Case("expert_down", "down", "DownConfig<192, 2, KNOBS>",
         "driver::down_case<STAGE, CONFIG>(DIR, {{256, 192, 0, 128, 128, 0, 192, 0}}, 2, 4)",
         (Part(256, 192, 128, 192, k_stride=128),), 4, 2, experts=4, add=True, inputs={"x": 512, "y": 192}),
    Case("absorb", "absorb", "AbsorbConfig<256, KNOBS>",
         f"driver::absorb_case<STAGE, CONFIG>(DIR, {{{{256, 768, 0, 256, 0, 0, 128, 256}}}}, 3, {POSITION})",
         (Part(256, 768, 256, 128, n_stride=256),), 3, 3, inputs={"x": 3 * 192, "y": 3 * (256 + 64)}),
]  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """An implementation of every stage: the suffix of its namespaces, and the knobs that are not at their defaults."""

    name: str
    suffix: str
    knobs: tuple[tuple[str, int], ...] = ()
    limit: float = SCALAR

    def stage(self, case: Case) -> str:
        """The namespace of this variant of a case's stage."""
        return case.stage + self.suffix

    def settings(self, case: Case) -> dict[str, int]:
        """The knobs of a case's stage."""
        return knob_values(self.stage(case))[0] | dict(self.knobs)


VARIANTS = [
    Variant("scalar", "_scalar"),
    Variant("two", "", (("LEVELS", 2),), TWO_LEVELS),
    Variant("one", "", (("LEVELS", 1),), ONE_LEVEL),
    Variant("widen", "_widen"),
]


def knob_variants(case: Case) -> list[Variant]:
    """A variant for every value of every knob of a case's stages."""
    found = []
    for suffix, limit in (("", TWO_LEVELS), ("_widen", SCALAR)):
        for values in knob_values(case.stage + suffix):
            name = knobs_type(values).removeprefix("Knobs_")
            found.append(Variant(name, suffix, tuple(values.items()), ONE_LEVEL if values.get("LEVELS") == 1 else limit))
    return found


IDS = np.array([3, 1], np.int32)


def bf16(x: F32) -> NDArray[np.uint16]:
    """The bits of float32 values rounded towards zero to bf16."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widen(bits: NDArray[np.uint16]) -> F32:
    """bf16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Data:
    """What a case computes from and what it must give: units[u] is w[k, n] over the segments side by side."""

    files: dict[str, bytes]
    units: list[F32]
    expected: F64


def silu(x: F64) -> F64:
    """x * sigmoid(x)."""
    return np.asarray(x / (1 + np.exp(-x)))


def make(case: Case) -> Data:
    """Random weights, N(0, 1) activations (the error grows with max / rms of a group), and the float64 answer."""
    rng = np.random.default_rng(len(case.name) * 1000 + case.items)
    files: dict[str, bytes] = {}
    dense: list[F32] = []
    for s, part in enumerate(case.parts):
        codes = rng.integers(0, 16, (case.experts, part.rows, part.cols), np.uint8)
        scales = bf16(rng.uniform(0.002, 0.01, (case.experts, part.rows // 128, part.cols)).astype(np.float32))
        zeros = rng.integers(0, 16, scales.shape).astype(np.float32)
        files |= {
            f"q{s}": (codes[:, 0::2] | codes[:, 1::2] << 4).tobytes(), f"scales{s}": scales.tobytes(),
            f"zeros{s}": bf16(zeros).tobytes(),
        }  # fmt: skip
        dense.append((codes - zeros.repeat(128, 1)) * widen(scales).repeat(128, 1))
    units = []
    for u in range(case.period * case.experts):
        e, i = divmod(u, case.period)
        cut = [
            w[e, i * p.k_stride : i * p.k_stride + p.k, p.n0 + i * p.n_stride : p.n0 + i * p.n_stride + p.n]
            for w, p in zip(dense, case.parts, strict=True)
        ]
        units.append(np.concatenate(cut, axis=1).astype(np.float32))
    x32 = rng.standard_normal(case.inputs["x"]).astype(np.float32)
    x = widen(bf16(x32)).astype(np.float64) if case.bf16_x else x32.astype(np.float64)
    files["x"] = bf16(x32).tobytes() if case.bf16_x else x32.tobytes()
    share = rng.uniform(0.1, 0.6, 2).astype(np.float32)
    files |= {"ids": IDS.tobytes(), "w": share.tobytes()}
    y0 = rng.standard_normal(case.inputs["y"]).astype(np.float32) if case.add else np.full(case.inputs["y"], np.nan, np.float32)
    files["y0"] = y0.tobytes()
    return Data(files, units, answer(case, units, x, y0.astype(np.float64), share.astype(np.float64)))


def answer(case: Case, units: list[F32], x: F64, y0: F64, share: F64) -> F64:
    """The float64 output of a case (what is added, for an Add port, not the sum)."""
    wide = [u.astype(np.float64) for u in units]
    if case.stage == "linear":
        whole = x.size == case.parts[0].k
        boxes = [x if whole else x[i * case.parts[0].k :][: case.parts[0].k] for i in range(case.items)]
        ys = [b @ w for b, w in zip(boxes, wide, strict=True)]
        return np.asarray(sum(ys)) if case.add else np.concatenate(ys)
    if case.stage == "absorb":
        q = x.reshape(case.items, 192)
        qa = [w @ q[i, :128] for i, w in enumerate(wide)]
        angle = POSITION * 10000.0 ** (-np.arange(0, 64, 2) / 64)
        pairs = (q[:, 128::2] + 1j * q[:, 129::2]) * np.exp(1j * angle)
        return np.concatenate([*qa, np.stack([pairs.real, pairs.imag], axis=-1).ravel()])
    ys = []
    for item in range(case.items):
        slot, tile = divmod(item, case.period)
        w = wide[int(IDS[slot]) * case.period + tile]
        if case.stage == "up":
            gate, up = np.split(x @ w, 2)
            ys.append(silu(gate) * up)
        else:
            ys.append(share[slot] * (x[item * 128 : item * 128 + 128] @ w))
    return np.asarray(sum(ys)) if case.stage == "down" else np.concatenate(ys)


Pairs = list[tuple[Case, Variant]]
STANDARD: Pairs = [(case, variant) for case in CASES for variant in VARIANTS]
KNOBS: Pairs = [(case, variant) for case in CASES for variant in knob_variants(case)]


def main_text(pairs: Pairs) -> str:
    """A main that runs every case and variant below the folder argv[1]."""
    lines = ["int main(int, char** argv) {", "const std::string root = argv[1];"]
    for case, variant in pairs:
        config = case.config.replace("KNOBS", knobs_type(variant.settings(case)))
        call = case.call.replace("STAGE", f"{variant.stage(case)}::Stage<C>").replace("CONFIG", "C")
        lines.append(f'{{ using C = {config}; {call.replace("DIR", f"""root + "/{case.name}.{variant.name}" """)}; }}')
    return "\n".join([*lines, "}"])


@dataclass(frozen=True)
class Target:
    """An instruction set: compiler, flags, and what runs the program."""

    name: str
    flags: tuple[str, ...]
    compiler: str = "g++"
    runner: tuple[str, ...] = ()


CHECKED = ("-O1", "-DKB_CHECKED", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
QEMU = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
TARGETS = [
    Target("x86-64-v2", ("-march=x86-64-v2",)),
    Target("x86-64-v3", ("-march=x86-64-v3",)),
    Target("x86-64-v4", ("-march=x86-64-v4",)),
    Target("native", ("-march=native",)),
    Target("native-checked", ("-march=native", *CHECKED)),
    Target("v2-checked", ("-march=x86-64-v2", *CHECKED)),
    Target("aarch64", ("-march=armv8-a",), "aarch64-linux-gnu-g++", QEMU),
    Target("aarch64-dotprod", ("-march=armv8.2-a+dotprod",), "aarch64-linux-gnu-g++", QEMU),
]


def level_of_this_machine() -> int:
    """The x86-64 level that this processor runs, 0 on another machine."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = next((line.split() for line in info.splitlines() if line.startswith("flags")), [])
    for level, flag in ((4, "avx512vl"), (3, "avx2"), (2, "ssse3")):
        if flag in flags:
            return level
    return 0


def execute(command: tuple[str, ...], root: Path) -> None:
    """Runs a built driver over the case folders below `root`."""
    done = subprocess.run([*command, str(root)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


@dataclass
class Ran:
    """Results of one target: read back with `get`."""

    root: Path
    data: dict[str, Data]
    command: tuple[str, ...]

    def get(self, case: Case, variant: Variant, name: str) -> F32:
        """A float32 file of a case."""
        return np.fromfile(self.root / f"{case.name}.{variant.name}" / name, np.float32)

    def output(self, case: Case, variant: Variant) -> F64:
        """What the stage computed: its output, less what was there before for an Add port."""
        y = self.get(case, variant, "y").astype(np.float64)
        return y - self.get(case, variant, "y0") if case.add else y


def build_and_run(target: Target, pairs: Pairs, root: Path) -> Ran:
    """Builds and runs cases for a target, or skips where the toolchain or this processor lacks."""
    for tool in (target.compiler, *target.runner[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if target.name.startswith("x86-64-v") and level_of_this_machine() < int(target.name[-1]):
        pytest.skip(f"this processor does not run {target.name}")
    if target.name == "v2-checked" and level_of_this_machine() < 2:
        pytest.skip("not an x86-64 machine")
    data = {case.name: make(case) for case in CASES}
    for case, variant in pairs:
        folder = root / f"{case.name}.{variant.name}"
        folder.mkdir()
        for name, content in data[case.name].files.items():
            (folder / name).write_bytes(content)
    exe = build(program("driver.hpp", main_text(pairs)), root / "driver", list(target.flags), target.compiler)
    command = (*target.runner, str(exe))
    execute(command, root)
    return Ran(root, data, command)


@pytest.fixture(scope="module", params=TARGETS, ids=lambda t: t.name)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Builds and runs everything once for a target."""
    target: Target = request.param
    return build_and_run(target, STANDARD, tmp_path_factory.mktemp(target.name))


every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)


def error(got: F64, want: F64) -> float:
    """Relative RMS error."""
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


def check_unpacked(ran: Ran, case: Case, variant: Variant) -> None:
    """The packed units mean the canonical weights, bit for bit."""
    want = np.concatenate([u.ravel() for u in ran.data[case.name].units])
    assert np.array_equal(ran.get(case, variant, "unpacked"), want), f"{case.name} {variant.name}"


def check_output(ran: Ran, case: Case, variant: Variant) -> float:
    """The output is that of float64 within the variant's limit; returns the relative RMS error."""
    want = ran.data[case.name].expected
    got = ran.output(case, variant)
    if case.stage == "absorb":  # the rotated part is not quantised: hold it to more
        assert error(got[-192:], want[-192:]) < 1e-6
        got, want = got[:-192], want[:-192]
    e = error(got, want)
    print(f"{case.name} {variant.name}: {e:.2e}")
    assert e < variant.limit, f"{case.name} {variant.name}"
    return e


def check_refusals(ran: Ran, case: Case, variant: Variant) -> None:
    """`pack` refuses the bad weights that the driver offers, and only those."""
    said = (ran.root / f"{case.name}.{variant.name}" / "refusals").read_text().splitlines()
    assert said == ["zero point not an integer in 0..15"] * 6 + ["scale not finite"] * 3 + ["accepted"], f"{case.name} {variant.name}"


@every_case
@every_variant
def test_unpack_gives_back_the_canonical_weights(ran: Ran, case: Case, variant: Variant) -> None:
    check_unpacked(ran, case, variant)


@every_case
@every_variant
def test_output_matches_float64(ran: Ran, case: Case, variant: Variant, record_property: Callable[[str, object], None]) -> None:
    record_property("relative_rms", check_output(ran, case, variant))


@every_case
@every_variant
def test_bad_zero_points_and_scales_are_refused(ran: Ran, case: Case, variant: Variant) -> None:
    check_refusals(ran, case, variant)


@pytest.mark.parametrize("target", [t for t in TARGETS if t.name in ("native-checked", "x86-64-v3")], ids=lambda t: t.name)
def test_every_value_of_every_knob(target: Target, tmp_path: Path) -> None:
    done = build_and_run(target, KNOBS, tmp_path)
    for case, variant in KNOBS:
        check_unpacked(done, case, variant)
        check_output(done, case, variant)
        check_refusals(done, case, variant)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_broken_activation_stays_visible(ran: Ran, tmp_path: Path, broken: float) -> None:
    for case, variant in STANDARD:
        folder = tmp_path / f"{case.name}.{variant.name}"
        shutil.copytree(ran.root / folder.name, folder)
        x = np.fromfile(folder / "x", np.uint16 if case.bf16_x else np.float32)
        x[5] = bf16(np.array([broken], np.float32))[0] if case.bf16_x else broken
        x.tofile(folder / "x")
    execute(ran.command, tmp_path)
    for case, variant in STANDARD:
        y = np.fromfile(tmp_path / f"{case.name}.{variant.name}" / "y", np.float32)
        # x[5] is in the box of item 0 (of slot 0, tile 0 for an expert): its first outputs cannot be finite
        assert not np.isfinite(y[:16]).any(), f"{case.name} {variant.name}"
