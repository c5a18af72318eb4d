"""Plan files with odd content are refused in a sentence, never with a traceback, and never half understood."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from agents.planner import expand
from sandbox.errors import PlanError
from sandbox.problem import Problem

TINY = Problem.load("kimi_linear_decode", "tiny")
FUSED = yaml.safe_load(TINY.plan_file("fused").read_text())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("flags",), "kva"),
        (("flags",), 3),
        (("flags",), None),
        (("plan",), ...),
        (("phases", "kda", 0, "zero"), None),
        (("phases", "kda", 0, "zero"), "y"),
        (("phases", "end", 0, "steps"), None),
        (("phases", "end", 0, "phase"), 'e"mit'),
        (("phases", "end", 0, "phase"), ...),
        (("phases", "end", 0, "steps", 0, "place"), 0),
        (("phases", "end", 0, "steps", 0, "place"), "block x"),
        (("phases", "end", 0, "steps", 0, "stage"), ...),
        (("phases", "mla", 0, "steps", 6, "split"), []),
        (("phases",), {"kda": [], "mla": [], "moe": [], "end": []}),
        (("dropped_roundings",), [5]),
    ],
)
def test_odd_content_is_a_plan_error(path: tuple[Any, ...], value: Any) -> None:
    spec = copy.deepcopy(FUSED)
    at = spec
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    with pytest.raises(PlanError):
        expand(spec, TINY.graph, 2, "cpu")


@pytest.mark.parametrize("spec", [None, 7, [1], "plan"])
def test_what_is_no_mapping_is_a_plan_error(spec: Any) -> None:
    with pytest.raises(PlanError):
        expand(spec, TINY.graph, 2, "cpu")
