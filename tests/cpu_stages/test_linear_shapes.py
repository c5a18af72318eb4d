"""Every knob value of the quantised-linear stages compiles at every shape that some size of the problem has.

A knob that does not fit a shape must give way by itself: the search sets knobs for a slot without looking at the shape.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from experiments.problems.kimi_linear_decode.definition import SIZES
from experiments.problems.kimi_linear_decode.graph import build_graph
from sandbox.graph import Node, Sharding
from tests.cpu_stages.stage_text import HERE, RUNTIME, knob_values, knobs_type, program

STAGE_OF = {"linear_w4": "linear", "expert_up": "up", "expert_down": "down", "absorb": "absorb"}


def config(node: Node, split: Sharding) -> str:
    """The Config of one node under one sharding, with KNOBS for the type of the knobs."""
    dims = split.dims
    match node.kind:
        case "linear_w4":
            mode = "ADD" if split.boxes["y"].mode == "add" else "OWN"
            whole = str(split.boxes["x"].size == 0).lower()
            return f"LinearConfig<{dims['K']}, {dims['N']}, {len(split.segments)}, {whole}, {mode}, KNOBS>"
        case "expert_up":
            return f"UpConfig<{dims['K']}, {dims['N']}, {split.period}, KNOBS>"
        case "expert_down":
            return f"DownConfig<{dims['N']}, {split.period}, KNOBS>"
        case _:
            return f"AbsorbConfig<{dims['LORA']}, KNOBS>"


def shapes() -> set[tuple[str, str]]:
    """(stage, config) of every quantised node of every size."""
    graphs = [build_graph(dims) for dims in SIZES.values()]
    return {
        (STAGE_OF[node.kind], config(node, split))
        for graph in graphs
        for node in graph.nodes
        if node.kind in STAGE_OF
        for split in node.shardings.values()
    }


def test_every_knob_value_compiles_at_every_shape_of_every_size(tmp_path: Path) -> None:
    found = shapes()
    assert {stage for stage, _ in found} == set(STAGE_OF.values()) and len(found) > 15
    lines = [
        f"template struct {stage}{suffix}::Stage<{text.replace('KNOBS', knobs_type(values))}>;"
        for stage, text in sorted(found)
        for suffix in ("", "_widen")
        for values in knob_values(stage + suffix)
    ]
    source = tmp_path / "shapes.cpp"
    source.write_text(program("driver.hpp", "\n".join(lines)))
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", f"-I{RUNTIME}", f"-I{HERE}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:6000]
