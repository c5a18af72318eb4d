"""Every CPU stage but the quantised linears: vectorised and scalar against float64, on every instruction set we claim.

The driver program is generated here (one Config per case, as the assembler writes them) and really compiled and run;
`python tests/cpu_stages/test_other_stages.py` measures instead.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.cpu_stages.other_cases import CASES, Array, Case, expected, make_inputs, to_bf16

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MARCHES = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "native", "native-checked", "aarch64")
ARM_COMPILER, ARM_RUNNER = "aarch64-linux-gnu-g++", "qemu-aarch64"
SOURCES: dict[str, tuple[str, ...]] = {
    "add_norm": ("rmsnorm/cpu/add_norm.hpp",),
    "emit": ("rmsnorm/cpu/emit.hpp",),
    "linear_bf16": ("bf16-linear/cpu/linear_bf16.hpp",),
    "short_conv": ("kda-state/cpu/short_conv.hpp",),
    "kda_state": ("kda-state/cpu/kda_state.hpp",),
    "rope": ("mla-attention/cpu/rope_angles.hpp", "mla-attention/cpu/rope.hpp"),
    "append": ("mla-attention/cpu/append.hpp",),
    "attend": tuple(f"mla-attention/cpu/attend{part}.hpp" for part in ("_vectors", "_groups", "_heads", "")),
    "topk": ("moe-router/cpu/topk.hpp",),
    "kda_two_pass": ("kda-state/cpu/kda_two_pass.hpp",),
    "attend_bf16": tuple(f"mla-attention/cpu/{part}.hpp" for part in ("attend_vectors", "pairs", "attend_bf16")),
}
FORMS = {"read": "kb::View<{t}>", "own": "kb::Own<{t}>", "state": "kb::State<{t}>", "sum": "kb::Sum<{c}>"}
LIMIT = 2e-6  # relative RMS error; rounding to bf16 is compared exactly instead


def config_text(case: Case, index: int) -> str:
    """The Config and the function of one case, for both implementations."""
    ports, declare, views, ys, y_views = [], [], [], [], []
    for port in case.ports:
        kind = FORMS[port.mode].format(t=port.ctype, c=port.copies)
        offset = f" + size_t(item) * {port.box}" if port.box else ""
        seen = (port.rows - 1) * port.stride + port.box if port.box else port.size
        size = f"size_t(a.position) * {port.size}" if port.dynamic else str(port.size * port.copies)
        declare.append(f"drive::Array<{port.ctype}> t_{port.name}({size});")
        if port.mode in ("read", "sum", "state"):
            declare.append(f"t_{port.name}.read(a.in);")
        n = size if port.dynamic else str(seen)
        view = f"{{t_{port.name}.p{offset}, {n}" + (f", {port.size}}}" if port.mode == "sum" else "}")
        if port.name[0] == "y" and port.name[1:].isdigit():
            ys.append(kind)
            y_views.append(kind + view)
        else:
            ports.append(f"{kind} {port.name};")
            views.append(view)
    if case.kind in ("add_norm", "emit"):
        ports.append(f"std::tuple<{', '.join(ys)}> ys;")
        views.append(f"{{{', '.join(y_views)}}}")
    constants = {"ITEMS": case.items, "PERIOD": case.period, "SEGMENTS": int(case.units > 0)} | dict(case.dims)
    lines = [f"static constexpr int {k} = {v};" for k, v in constants.items()]
    lines += [f"static constexpr bool WHOLE_{p.name.upper()} = {'false' if p.box else 'true'};" for p in case.ports]
    writes = [f"t_{p.name}.write(a.out);" for p in case.ports if p.mode in ("own", "state")]
    weight = [
        f"drive::Array<std::byte> raw({case.weight_size * 2 + 1});",
        f"if (std::fread(raw.p + 1, 2, {case.weight_size}, a.in) != {case.weight_size}) std::exit(3);",
    ]  # an odd address
    return f"""
namespace case{index} {{
struct Cfg {{
    {" ".join(lines)}
    struct Ports {{ {" ".join(ports)} }};
}};
template <class Impl> void run(const drive::Arguments& a) {{
    {" ".join(declare)}
    {" ".join(weight) if case.units else "drive::Array<std::byte> raw(1);"}
    const kb::bf16* w = reinterpret_cast<const kb::bf16*>(raw.p + 1);
    drive::stage<Impl>(a, {case.items}, {max(case.units, 1)}, kb::Canonical{{nullptr, nullptr, nullptr, w}},
                    kb::Segment{{{", ".join(map(str, case.segment))}}}, {case.period}, {case.unit_floats},
                    {{{", ".join(f"{{reinterpret_cast<std::byte*>(t_{p.name}.p), t_{p.name}.n * sizeof *t_{p.name}.p}}" for p in case.ports if p.mode == "state")}}},
                    [&]([[maybe_unused]] int item) {{ return Cfg::Ports{{{", ".join(views)}}}; }});
    {" ".join(writes)}
}}
}}"""


def program() -> str:
    """The whole driver: argument 1 is 2 * case + (1 for the scalar oracle)."""
    parts = ['#include "other_stages.hpp"']
    kinds = {case.source: case.kind for case in CASES}
    for name, sources in SOURCES.items():
        scalar = (sources[0].rsplit("/", 1)[0] + f"/{kinds[name]}_scalar.hpp",)
        for space, files in ((f"vec_{name}", sources), (f"scalar_{name}", scalar)):
            text = "\n".join((ROOT / "skills" / f).read_text() for f in files)
            parts.append(f"namespace {space} {{\n{text}\n}}")
    parts += [config_text(case, i) for i, case in enumerate(CASES)]
    calls = "".join(
        f"case {2 * i + j}: case{i}::run<{space}_{case.source}::Stage<case{i}::Cfg>>(a); break;\n"
        for i, case in enumerate(CASES)
        for j, space in enumerate(("vec", "scalar"))
    )
    parts.append(
        f"int main(int argc, char** argv) {{ const auto a = drive::arguments(argc, argv);\n"
        f"switch (std::atoi(argv[1])) {{\n{calls}default: return 2; }}\nreturn std::fclose(a.out); }}"
    )
    return "\n".join(parts)


@functools.cache
def driver(march: str) -> tuple[str, ...]:
    """Command that runs the driver built for `march`; skips where the toolchain lacks."""
    base = march.removesuffix("-checked")
    arm = base == "aarch64"
    if arm and not (shutil.which(ARM_COMPILER) and shutil.which(ARM_RUNNER)):
        pytest.skip(f"needs {ARM_COMPILER} and {ARM_RUNNER}")
    if not arm and os.uname().machine != "x86_64":
        pytest.skip("needs an x86-64 machine")
    if base == "x86-64-v4" and "avx512vl" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX-512")
    folder = Path(tempfile.mkdtemp(prefix="stages-"))
    (folder / "driver.cpp").write_text(program())
    flags = ["-DKB_CHECKED"] if march.endswith("-checked") else []
    flags += [] if arm else [f"-march={base}"]
    command = [
        ARM_COMPILER if arm else "g++",
        "-std=c++20",
        "-O3",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-psabi",
        "-pthread",
        *flags,
        f"-I{HERE}",
        f"-I{ROOT / 'sandbox/stage_runtime/cpu'}",
        str(folder / "driver.cpp"),
        "-o",
        str(folder / "driver"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[:6000]
    run = (str(folder / "driver"),)
    return (ARM_RUNNER, "-L", "/usr/aarch64-linux-gnu", *run) if arm else run


def run_case(
    command: tuple[str, ...],
    case: Case,
    scalar: bool,
    position: int,
    inputs: dict[str, Array],
    writer: bool = True,
    extra: tuple[str, ...] = (),
) -> tuple[dict[str, Array], str]:
    """Outputs and changed states by port, and `unpacked` weights; and what the driver printed."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "in", Path(folder) / "out"
        names = [p.name for p in case.ports if p.mode in ("read", "sum", "state")] + (["weight"] if case.units else [])
        source.write_bytes(b"".join(np.ascontiguousarray(inputs[n]).tobytes() for n in names))
        number = str(2 * CASES.index(case) + int(scalar))
        done = subprocess.run(
            [*command, number, str(position), str(int(writer)), str(source), str(result), *extra],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{case.name} ended with {done.returncode}: {done.stderr}"
        raw = result.read_bytes()
    made: dict[str, Array] = {}
    if case.units:
        count = case.unit_floats * case.units
        made["unpacked"] = np.frombuffer(raw, np.float32, count)
        raw = raw[4 * count :]
    for port in case.ports:
        if port.mode in ("own", "state"):
            made[port.name] = np.frombuffer(raw, port.numpy_type, port.size)
            raw = raw[made[port.name].nbytes :]
    assert not raw
    return made, done.stdout


def relative_rms(got: Array, want: Array) -> float:
    """Root mean square of the error over that of the wanted values."""
    return float(np.sqrt(np.mean((got.astype(np.float64) - want) ** 2)) / max(np.sqrt(np.mean(want**2)), 1e-30))


ERRORS: dict[tuple[str, bool, str], float] = {}


def check(case: Case, made: dict[str, Array], want: dict[str, Array], scalar: bool = False) -> None:
    """Floats within LIMIT; bf16, ids and unpacked weights exactly."""
    assert set(made) == set(want)
    for name, value in want.items():
        if value.dtype != np.float64:
            np.testing.assert_array_equal(made[name], value, err_msg=f"{case.name} {name}")
            continue
        if made[name].dtype == np.uint16:  # a rounded output: at most the neighbour where fp32 sums differ
            got, exact = made[name].astype(np.int64), to_bf16(value).astype(np.int64)
            assert np.abs(got - exact).max() <= 1 and np.mean(got != exact) < 0.01, f"{case.name} {name}"
            continue
        error = relative_rms(made[name], value)
        key = (case.name, scalar, name)
        ERRORS[key] = max(ERRORS.get(key, 0.0), error)
        assert error <= (LIMIT if scalar else max(LIMIT, case.limit)), f"{case.name} {name}: relative RMS error {error:.2e}"


@pytest.mark.parametrize("march", MARCHES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_matches_float64(case: Case, march: str) -> None:
    command = driver(march)
    for position in case.positions:
        inputs = make_inputs(case, position)
        want = expected(case, inputs, position)
        for scalar in (False, True):
            check(case, run_case(command, case, scalar, position, inputs)[0], want, scalar)


@pytest.mark.parametrize("source", ["short_conv", "kda_state", "kda_two_pass", "append"])
def test_only_the_writer_changes_state(source: str) -> None:
    case = next(c for c in CASES if c.source == source)
    inputs = make_inputs(case, 1)
    want = expected(case, inputs, 1) | {p.name: inputs[p.name].reshape(-1) for p in case.ports if p.mode == "state"}
    for scalar in (False, True):
        check(case, run_case(driver("native"), case, scalar, 1, inputs, writer=False)[0], want)


def topk_case() -> Case:
    return next(c for c in CASES if c.name == "topk-64")


@pytest.mark.parametrize("march", ["x86-64-v2", "native"])
@pytest.mark.parametrize("logits", [
    np.zeros(64), np.repeat([3.0, 1.0, 3.0, -2.0], 16), np.where(np.arange(64) % 7 == 3, 5.0, 0.0),
    np.linspace(80, -80, 64), np.where(np.arange(64) == 63, 1e4, -1e4), 1e-9 * np.arange(64),
])  # fmt: skip
def test_ties_go_to_the_lower_index(logits: Array, march: str) -> None:
    case, inputs = topk_case(), {"logits": logits.astype(np.float32)}
    want = expected(case, inputs, 0)
    for scalar in (False, True):
        check(case, run_case(driver(march), case, scalar, 0, inputs)[0], want)


def test_broken_logits_still_name_different_experts() -> None:
    case = topk_case()
    logits = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    for broken in (np.full(64, np.nan, np.float32), np.where(np.arange(64) < 60, np.nan, logits).astype(np.float32)):
        ids = [run_case(driver("native"), case, scalar, 0, {"logits": broken})[0]["ids"] for scalar in (False, True)]
        assert len(set(ids[0].tolist())) == 8 and ids[0].min() >= 0 and ids[0].max() < 64
        np.testing.assert_array_equal(ids[0], ids[1])


@pytest.mark.parametrize("source", ["kda_state", "kda_two_pass"])
def test_decay_of_extreme_gates(source: str) -> None:
    """softplus is stable: a gate of +-1e4 gives a decay of 0 or 1, never a NaN."""
    case = next(c for c in CASES if c.source == source)
    inputs = make_inputs(case, 0)
    gates = inputs["qkvg"].reshape(-1, 4, 128)
    gates[:, 3, ::4], gates[:, 3, 1::4], gates[:, 3, 2::4] = 1e4, -1e4, 60.0
    want = expected(case, inputs, 0)
    for scalar in (False, True):
        check(case, run_case(driver("native"), case, scalar, 0, inputs)[0], want)


def knob_values(case: Case) -> dict[str, int]:
    return {k: v for k, v in case.dims if k in ("LEVELS", "PLEVELS", "BLOCK", "AHEAD", "COLS")}


@pytest.mark.parametrize("skill", ["mla-attention", "kda-state"])
def test_every_knob_value_of_the_manifest_has_a_case(skill: str) -> None:
    for entry in yaml.safe_load((ROOT / "skills" / skill / "implementations.yaml").read_text())["implementations"]:
        sources = tuple(f"{skill}/{s}" for s in entry["sources"])
        for knob, declared in entry.get("knobs", {}).items():
            tested = {knob_values(c)[knob] for c in CASES if SOURCES[c.source] == sources}
            assert set(declared["values"]) <= tested, f"{entry['name']} {knob}"


@pytest.mark.parametrize("name", ["attend-512-32by16-L1P2B64A64", "attend-512-32by16-L2P1B64A64"])
def test_rounding_in_two_parts_is_as_good_as_its_knob_says(name: str) -> None:
    """One part of a query or weight leaves an error that two parts do not have: LEVELS and PLEVELS do different things."""
    case = next(c for c in CASES if c.name == name)
    inputs = make_inputs(case, 2048)
    want = expected(case, inputs, 2048)["ctx"]
    error = relative_rms(run_case(driver("native"), case, False, 2048, inputs)[0]["ctx"], want)
    assert 3e-4 < error < case.limit


def measure() -> None:
    """Median and least time in us of every full-size case on one pinned thread, warm and cold caches."""
    os.sched_setaffinity(0, {int(sys.argv[1]) if len(sys.argv) > 1 else 1})
    for march in sys.argv[2:] or ["native"]:
        for case in CASES:
            if not case.bench:
                continue
            inputs = make_inputs(case, case.positions[-1])
            want = expected(case, inputs, case.positions[-1])
            for scalar in (False, True):
                check(case, run_case(driver(march), case, scalar, case.positions[-1], inputs)[0], want, scalar)
            errors = " ".join(f"{name} {error:.1e}" for (which, scalar, name), error in ERRORS.items() if which == case.name and not scalar)
            times = [
                run_case(driver(march), case, scalar, case.positions[-1], inputs, extra=(repeats, cold))[1].split()
                for scalar, repeats, cold in ((False, "40", "0"), (False, "15", "1"), (True, "3", "0"))
            ]
            print(
                f"{march:10} {case.name:24} warm {times[0][0]:>9} (least {times[0][1]}) cold {times[1][0]:>9} (least {times[1][1]})"
                f"  scalar {times[2][0]:>9} us  errors {errors}",
                flush=True,
            )


if __name__ == "__main__":
    measure()
