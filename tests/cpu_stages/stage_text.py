"""Builds test programs from stage sources, as the assembler will: each list of sources inside a namespace of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RUNTIME = ROOT / "sandbox" / "stage_runtime" / "cpu"
W4 = "w4a16-gemv/cpu/"
MOE = "moe-experts/cpu/"
MLA = "mla-absorb/cpu/"
STAGES: dict[str, list[str]] = {
    "linear": [W4 + "canonical.hpp", W4 + "digits.hpp", W4 + "linear.hpp"],
    "linear_scalar": [W4 + "canonical.hpp", W4 + "linear_scalar.hpp"],
    "up": [W4 + "canonical.hpp", W4 + "digits.hpp", MOE + "up.hpp"],
    "up_scalar": [W4 + "canonical.hpp", MOE + "up_scalar.hpp"],
    "down": [W4 + "canonical.hpp", W4 + "digits.hpp", MOE + "down.hpp"],
    "down_scalar": [W4 + "canonical.hpp", MOE + "down_scalar.hpp"],
    "absorb": [W4 + "canonical.hpp", W4 + "digits.hpp", MLA + "rope.hpp", MLA + "absorb.hpp"],
    "absorb_scalar": [W4 + "canonical.hpp", MLA + "absorb_scalar.hpp"],
}


def program(header: str, main: str) -> str:
    """A translation unit: `header` (a file beside this one), every stage in `namespace <stage name>`, then `main`."""
    parts = [f'#include "{header}"']
    for name, sources in STAGES.items():
        text = "\n".join((ROOT / "skills" / s).read_text() for s in sources)
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
