"""Correctness of one stage alone: inputs as the reference has them at that point, outputs against the reference there.

The yardstick is an honest bf16 stage: the reference on inputs rounded to bf16, its outputs rounded to bf16. A candidate may
be wrong by the same factors as a whole problem (RMS_FACTOR and ELEMENT_FACTOR of the problem's tolerance module).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save

from sandbox.checking import broken, cache_pads, finite, to_tensor
from sandbox.child_process import ChildProcess
from sandbox.evaluation import CaseResult, TensorError
from sandbox.graph import Node
from sandbox.problem import Problem

_TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32}


@dataclass(frozen=True)
class Drawn:
    """One secret case of a problem: its state, and what the truth has on every edge."""

    seed: int
    context: int
    state: Mapping[str, torch.Tensor]
    trace: Mapping[str, Any]


class CasePool:
    """Secret cases in a ring, each used a few times and then drawn anew: the truth of a whole step costs more than judging a stage.

    Cases in a row differ, so one evaluation never sees a case twice. No candidate's process outlives its evaluation or can
    leave anything behind, so what one has seen is of no use to the next."""

    RING = 6
    USES = 8

    def __init__(self) -> None:
        self._rings: dict[tuple[str, str, int], list[tuple[Drawn, int]]] = {}

    def draw(self, problem: Problem, weights: Mapping[str, torch.Tensor], context: int) -> Drawn:
        """The next case at a context."""
        ring = self._rings.setdefault((problem.name, problem.size, context), [])
        if len(ring) < self.RING:
            drawn, uses = self._fresh(problem, weights, context), 0
        else:
            drawn, uses = ring.pop(0)
        if uses + 1 < self.USES:
            ring.append((drawn, uses + 1))
        return drawn

    @staticmethod
    def _fresh(problem: Problem, weights: Mapping[str, torch.Tensor], context: int) -> Drawn:
        tolerance, reference = problem.module("tolerance"), problem.module("reference")
        seed = secrets.randbits(40)
        token, state = problem.module("definition").make_case(problem.dims, context, seed)
        trace: dict[str, Any] = {}
        truth = reference.Truth(problem.dims, weights, tolerance.truth_dtype(problem.dims))
        truth.step(token, {k: v.clone() for k, v in state.items()}, context, trace)
        return Drawn(seed, context, state, trace | {"token": token})


class StageCase:
    """Inputs, state, expected outputs and bounds of one stage for one secret case."""

    def __init__(self, problem: Problem, weights: Mapping[str, torch.Tensor], node: Node, drawn: Drawn) -> None:
        tolerance, reference = problem.module("tolerance"), problem.module("reference")
        self.problem, self.node, self.position, self.seed = problem, node, drawn.context, drawn.seed
        context, state, trace, graph = drawn.context, drawn.state, drawn.trace, problem.graph
        self.inputs = {t: trace[t].to(_TORCH[graph.tensors[t].dtype]).contiguous()
                       for t in node.inputs.values() if graph.tensors[t].role != "state"}  # fmt: skip
        self.state = {t: state[t] for t in node.ports.values() if graph.tensors[t].role == "state"}
        dims = problem.dims
        self.expected = reference.node_reference(dims, weights, node.name, self.inputs, self.state, context)
        rounded = {t: v.to(torch.bfloat16).to(v.dtype) if v.is_floating_point() else v for t, v in self.inputs.items()}
        honest = reference.node_reference(dims, weights, node.name, rounded, self.state, context)
        honest = {t: v.to(torch.bfloat16) if v.is_floating_point() else v for t, v in honest.items()}
        self.allowed = {}
        for name, want in self.expected.items():
            fresh = self.fresh(name, want)
            error = tolerance.tensor_error(fresh, self.fresh(name, honest[name]))
            floor = tolerance.FLOORS["bf16"]
            self.allowed[name] = (tolerance.RMS_FACTOR * max(error.relative, floor), tolerance.ELEMENT_FACTOR * max(error.element, floor))

    def fresh(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor that the stage computed: the new row of a cache, the last row of a window."""
        if name.endswith((".c_kv", ".k_rope")):
            return tensor[self.position : self.position + 1]
        return tensor[2:3] if name.endswith((".cq", ".ck", ".cv")) else tensor

    def file(self) -> bytes:
        """Inputs and state as the child binds them."""
        return save({**self.inputs, **{k: v.contiguous() for k, v in self.state.items()}})

    def judge(self, child: ChildProcess, rows: int, timeout: float) -> CaseResult:
        """Run the stage once in a loaded child and compare outputs and states."""
        tolerance, graph = self.problem.module("tolerance"), self.problem.graph
        child.prepare("check", self.file(), {}, capacity_pad=cache_pads(self.problem, self.state, rows))
        child.run_chain("check", steps=1, position=self.position, timeout=timeout)
        collected = child.collect("check", timeout)
        outputs = list(self.node.outputs.values())
        dumped = child.dump({t: graph.tensors[t].bytes for t in outputs}) if outputs else {}
        got: dict[str, torch.Tensor] = {}
        for t in outputs:
            decl = graph.tensors[t]
            got[t] = torch.frombuffer(bytearray(dumped[t]), dtype=_TORCH[decl.dtype]).view(*decl.shape)
        for t, before in self.state.items():
            got[t] = to_tensor(collected.tensors[t], before.dtype, (-1, *before.shape[1:]))
        results = {}
        for name, want in self.expected.items():
            note = ""
            actual = got[name]
            if name in collected.overruns:
                note = "written past its end"
            if name.endswith((".cq", ".ck", ".cv")) and not torch.equal(actual[:2], self.state[name][1:]):
                note = "older rows are not the shifted window"
            if name.endswith((".c_kv", ".k_rope")) and not torch.equal(actual[: self.position], self.state[name][: self.position]):
                note = "older rows have changed"
            error = tolerance.tensor_error(self.fresh(name, want), self.fresh(name, actual))
            rms, element = self.allowed[name]
            ok = error.relative <= rms and error.element <= element and not note
            results[name] = TensorError(rel_rms=finite(error.relative), allowed_rel_rms=rms, max_element=finite(error.element),
                                        allowed_max_element=element, ok=bool(ok), note=note)  # fmt: skip
        for name, before in self.state.items():
            if name not in self.expected and not torch.equal(got[name][: before.shape[0]], before):
                results[name] = broken("a state this stage only reads has changed")
        for name, before in self.inputs.items():
            if name in collected.overruns or not torch.equal(to_tensor(collected.tensors[name], before.dtype, before.shape), before):
                results[name] = broken("an input was changed, or written past its end")
        return CaseResult(probe="stage", seed=self.seed, position=self.position, steps=1, tensors=results)
