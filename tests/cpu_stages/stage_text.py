"""Builds test programs from stage sources, as the assembler will: each list of sources inside a namespace of its own."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RUNTIME = ROOT / "sandbox" / "stage_runtime" / "cpu"
IMPLEMENTATIONS = {  # namespace of a stage here -> its name in the manifests
    "linear": "w4a16-gemv/digits", "linear_widen": "w4a16-gemv/widen", "linear_scalar": "w4a16-gemv/scalar",
    "up": "moe-experts/up-digits", "up_widen": "moe-experts/up-widen", "up_scalar": "moe-experts/up-scalar",
    "down": "moe-experts/down-digits", "down_widen": "moe-experts/down-widen", "down_scalar": "moe-experts/down-scalar",
    "absorb": "mla-absorb/digits", "absorb_widen": "mla-absorb/widen", "absorb_scalar": "mla-absorb/scalar",
}  # fmt: skip


@functools.cache
def manifest(stage: str) -> dict[str, Any]:
    """The manifest entry of a stage, its sources as paths."""
    name = IMPLEMENTATIONS[stage]
    folder = ROOT / "skills" / name.split("/")[0]
    entries = yaml.safe_load((folder / "implementations.yaml").read_text())["implementations"]
    entry: dict[str, Any] = next(e for e in entries if e["name"] == name)
    return entry | {"sources": [folder / s for s in entry["sources"]]}


def knob_values(stage: str) -> list[dict[str, int]]:
    """Settings of a stage that show every value of every knob: the defaults, each other value alone, and all the last ones."""
    knobs = manifest(stage).get("knobs", {})
    defaults = {k: v["default"] for k, v in knobs.items()}
    single = [defaults | {k: value} for k, v in knobs.items() for value in v["values"]]
    every = [defaults, *single, {k: v["values"][-1] for k, v in knobs.items()}]
    return [s for i, s in enumerate(every) if s not in every[:i]]


def knobs_type(values: dict[str, int]) -> str:
    """The name of the C++ type that has these knobs; `program` declares it."""
    return "_".join(["Knobs", *(f"{k}{v}" for k, v in values.items())])


def program(header: str, main: str, more: Sequence[dict[str, int]] = ()) -> str:
    """A translation unit: `header` (a file beside this one), every stage in `namespace <stage name>`, then `main`. It declares the knobs
    of `knob_values` and `more`."""
    parts = [f'#include "{header}"']
    for values in {knobs_type(v): v for v in [*more, *(v for stage in IMPLEMENTATIONS for v in knob_values(stage))]}.values():
        fields = "".join(f"static constexpr int {k} = {v};" for k, v in values.items())
        parts.append(f"struct {knobs_type(values)} {{ {fields} }};")
    for name in IMPLEMENTATIONS:
        text = "\n".join(s.read_text() for s in manifest(name)["sources"])
        parts.append(f"namespace {name} {{\n{text}\n}}")
    return "\n".join([*parts, main])


def build(text: str, target: Path, flags: list[str], compiler: str = "g++") -> Path:
    """Compiles `text` to the executable `target`; any warning is an error."""
    source = target.with_suffix(".cpp")
    source.write_text(text)
    command = [
        compiler, "-std=c++20", "-O3", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
        f"-I{RUNTIME}", f"-I{HERE}", *flags, str(source), "-o", str(target),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[:6000]}"
    return target
