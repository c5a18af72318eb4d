"""Throughput of the quantised-linear stages against the read pass over the same bytes (run by hand, not by pytest).

python -m tests.cpu_stages.bench_linear_stages [--megabytes 96] [--rounds 9] [--threads 1 2] [--only NAME] [--every]
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import tempfile
from pathlib import Path

from tests.cpu_stages.stage_text import build, knob_values, knobs_type, manifest, program

LINEAR = {  # name -> (K, N, segments, whole x, mode)
    "qkvg 2304x512": (2304, 512, 4, "true", "OWN"),
    "q 2304x192": (2304, 192, 1, "true", "OWN"),
    "o_proj rows 128x2304": (128, 2304, 1, "false", "ADD"),
    "wv 512x128": (512, 128, 1, "false", "OWN"),
}
CASES = [  # name, stage, config with KNOBS, weights, ports
    *(
        (name, "linear", f"LinearConfig<{k}, {n}, {parts}, {whole}, {mode}, KNOBS>", f"w({k}, {n // parts}, {parts})", "Linear")
        for name, (k, n, parts, whole, mode) in LINEAR.items()
    ),
    ("expert_up 2304x256", "up", "UpConfig<2304, 256, 8, KNOBS>", "w(2304, 128, 2)", "Up"),
    ("expert_down 128x2304", "down", "DownConfig<2304, 1048576, KNOBS>", "w(128, 2304, 1)", "Down"),
    ("absorb 512x128", "absorb", "AbsorbConfig<512, KNOBS>", "w(512, 128, 1)", "Absorb"),
]


def settings(stage: str, every: bool) -> list[dict[str, int]]:
    """The knobs to measure: each value of each knob alone and all the last ones, or every combination."""
    if not every:
        return knob_values(stage)
    knobs = manifest(stage)["knobs"]
    return [dict(zip(knobs, values, strict=True)) for values in itertools.product(*(k["values"] for k in knobs.values()))]


def main_text(only: str, every: bool) -> tuple[str, list[dict[str, int]]]:
    """The C++ main that measures every shape, and the knobs that it uses. Of one shape all variants are sampled in turn."""
    blocks, used = [], []
    for name, stage, config, weights, ports in CASES:
        if only not in name:
            continue
        calls = []
        for suffix, shown in (("", "digits"), ("_widen", "widen")):
            for values in settings(stage + suffix, every):
                used.append(values)
                text = " ".join([shown, *(f"{k}={v}" for k, v in values.items())])
                variant = config.replace("KNOBS", knobs_type(values))
                calls.append(f'bench::entry<{stage}{suffix}::Stage<{variant}>>("{text}", w.unit(), bench::{ports}<{variant}>())')
        entries = ",\n".join(calls)
        blocks.append(f'{{ bench::Weights {weights}; bench::measure("{name}", b, {entries}); }}')
    body = "\n".join(blocks)
    return (
        f"""int main(int, char** argv) {{
        const bench::Bench b{{std::atoi(argv[1]), std::atoi(argv[2]), size_t(std::atoi(argv[3])) << 20}};
        {body}
    }}""",
        used,
    )


def run() -> None:
    """Builds at -march=native and prints one line per shape, variant and team size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=96, help="per variant")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="")
    parser.add_argument("--march", default="native")
    parser.add_argument("--every", action="store_true", help="every combination of knob values")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, knobs = main_text(args.only, args.every)
        exe = build(program("bench.hpp", text, knobs), Path(folder) / "bench", [f"-march={args.march}"])
        for threads in args.threads:
            subprocess.run([str(exe), str(threads), str(args.rounds), str(args.megabytes)], check=True)


if __name__ == "__main__":
    run()
