"""Throughput of the quantised-linear stages against the read pass over the same bytes (run by hand, not by pytest).

python -m tests.cpu_stages.bench_linear_stages [--megabytes 256] [--rounds 9] [--threads 1 2] [--only NAME]
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from tests.cpu_stages.stage_text import build, program

LINEAR = {  # name -> (K, N, segments, whole x, mode)
    "qkvg 2304x512": (2304, 512, 4, "true", "OWN"),
    "q 2304x192": (2304, 192, 1, "true", "OWN"),
    "o_proj rows 128x2304": (128, 2304, 1, "false", "ADD"),
    "wv 512x128": (512, 128, 1, "false", "OWN"),
}


def main_text(only: str) -> str:
    """The C++ main that measures every shape."""
    lines = []
    for name, (k, n, segments, whole, mode) in LINEAR.items():
        for levels in (2, 1):
            config = f"LinearConfig<{k}, {n}, {segments}, {whole}, {mode}, {levels}>"
            lines.append(f"""{{ using C = {config}; bench::Weights w(C::K, C::N / C::SEGMENTS, C::SEGMENTS);
                bench::measure<linear::Stage<C>>("{name} L{levels}", b, w.unit(), bench::Linear<C>()); }}""")
    for levels in (2, 1):
        lines.append(f"""{{ using C = UpConfig<2304, 256, 8, {levels}>; bench::Weights w(C::K, 128, 2);
            bench::measure<up::Stage<C>>("expert_up 2304x256 L{levels}", b, w.unit(), bench::Up<C>()); }}""")
        lines.append(f"""{{ using C = DownConfig<2304, 1048576, {levels}>; bench::Weights w(128, 2304, 1);
            bench::measure<down::Stage<C>>("expert_down 128x2304 L{levels}", b, w.unit(), bench::Down<C>()); }}""")
        lines.append(f"""{{ using C = AbsorbConfig<512, {levels}>; bench::Weights w(512, 128, 1);
            bench::measure<absorb::Stage<C>>("absorb 512x128 L{levels}", b, w.unit(), bench::Absorb<C>()); }}""")
    body = "\n".join(line for line in lines if only in line)
    return f"""int main(int, char** argv) {{
        const bench::Bench b{{std::atoi(argv[1]), std::atoi(argv[2]), size_t(std::atoi(argv[3])) << 20}};
        {body}
    }}"""


def run() -> None:
    """Builds at -march=native and prints one line per shape, level and team size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="")
    parser.add_argument("--march", default="native")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        exe = build(program("bench.hpp", main_text(args.only)), Path(folder) / "bench", [f"-march={args.march}"])
        for threads in args.threads:
            subprocess.run([str(exe), str(threads), str(args.rounds), str(args.megabytes)], check=True)


if __name__ == "__main__":
    run()
