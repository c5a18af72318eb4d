"""Correctness: cases drawn from secret seeds, the truth beside them, and the verdict on what a child made of them.

The problem's `tolerance` module owns the rule (relative RMS at most twice the honest bf16 baseline's, a cap on the
largest element, exact copies); this module feeds children and turns outcomes into records. It runs in the parent: no
expected value ever reaches a candidate's process.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save, save_file

from sandbox.child_process import ChildProcess, Collected
from sandbox.evaluation import CaseResult, TensorError
from sandbox.problem import Problem
from sandbox.raw_tensors import RawTensor

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I32": torch.int32, "I64": torch.int64, "U8": torch.uint8}
NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class CheckPlan:
    """How many fresh cases of which kind. `probes`: also under every probe overlay; `steps`: chained steps per case."""

    seeds: int = 3
    probe_seeds: int = 2
    probes: bool = True
    short_context: bool = True
    steps: int = 1


@dataclass(frozen=True)
class Prepared:
    """One set of weights with its cases, truth and bounds; `overlay` is the file that patches the ordinary weights."""

    name: str
    check: Any  # the problem's tolerance.Check
    overlay: Path | None
    context: int


def prepare_checks(problem: Problem, weights: Mapping[str, torch.Tensor], plan: CheckPlan, folder: Path) -> list[Prepared]:
    """Draw fresh secret cases under ordinary and probe weights and calibrate the bounds on the bf16 baseline."""
    tolerance, probes = problem.module("tolerance"), problem.module("probes")
    secret = secrets.randbits(40)

    def make(name: str, overlay: Mapping[str, torch.Tensor], count: int, context: int) -> Prepared:
        seeds = [secrets.randbits(40) for _ in range(count)]
        path = None
        if overlay:
            path = folder / f"probe-{secrets.token_hex(6)}.safetensors"
            save_file({k: v.contiguous().cpu() for k, v in overlay.items()}, path)
        check = tolerance.prepare_check(name, problem.dims, weights, overlay, seeds, context, plan.steps)
        return Prepared(name, check, path, context)

    prepared = [make("ordinary", {}, plan.seeds, problem.context)]
    if plan.short_context and problem.interface.short_context(problem.dims):
        prepared.append(make("short_context", {}, plan.probe_seeds, secrets.randbelow(min(32, problem.context))))
    if plan.probes:
        for name, overlay in probes.probe_overlays(problem.dims, weights, secret).items():
            prepared.append(make(name, overlay, plan.probe_seeds, problem.context))
    return prepared


def to_tensor(raw: RawTensor, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None) -> torch.Tensor:
    """A tensor from a child's bytes (copied, so that nothing the child does later shows)."""
    flat = torch.frombuffer(bytearray(raw.data), dtype=dtype or _DTYPES[raw.dtype])
    return flat.view(*(shape or raw.shape))


def case_file(inputs: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> bytes:
    """The safetensors bytes of a case: inputs and state, caches with the rows that are filled."""
    return save({k: v.contiguous() for k, v in {**inputs, **state}.items()})


def cache_pads(problem: Problem, state: Mapping[str, torch.Tensor], rows: int) -> dict[str, int]:
    """Bytes to append to each growing state so that it has `rows` rows."""
    growing = problem.interface.growing
    return {name: (rows - t.shape[0]) * math.prod(t.shape[1:]) * t.element_size() for name, t in state.items() if growing(name)}


def step_outputs(problem: Problem, collected: Collected, index: int) -> dict[str, torch.Tensor]:
    """The outputs of one step of a chain."""
    return {
        name: torch.frombuffer(bytearray(collected.outputs[name][index]), dtype=dtype).view(shape)
        for name, (dtype, shape) in problem.outputs.items()
    }


def state_of(before: Mapping[str, torch.Tensor], collected: Collected) -> dict[str, torch.Tensor]:
    """The state that a child left, with the rows that its caches have room for."""
    return {name: to_tensor(collected.tensors[name], t.dtype, (-1, *t.shape[1:])) for name, t in before.items()}


def outcome_of(problem: Problem, case: Any, collected: Collected) -> Any:
    """The problem's Outcome from what a child left after a chain."""
    return problem.interface.outcome(step_outputs(problem, collected, -1), state_of(case.state, collected))


def run_cases(child: ChildProcess, problem: Problem, prepared: Prepared, rows: int, timeout: float) -> list[CaseResult]:
    """Run every case of one check in a loaded child and compare. Structure first, then copies, then values."""
    tolerance = problem.module("tolerance")
    errors, notes, cases = [], [], prepared.check.cases
    for case in cases:
        child.prepare("check", case_file(case.inputs, case.state), problem.output_bytes, capacity_pad=cache_pads(problem, case.state, rows))
        child.run_chain("check", steps=case.steps, position=case.position, feed=problem.spec.feed, timeout=timeout)
        collected = child.collect("check", timeout)
        outcome = outcome_of(problem, case, collected)
        faults = [*tolerance.structure_faults(problem.dims, case, outcome), *tolerance.copy_faults(case, outcome)]
        faults += [f"{name}: written past its end" for name in collected.overruns]
        for name, given in case.inputs.items():
            if case.steps == 1 and bytes(collected.tensors[name].data) != given.contiguous().view(torch.uint8).numpy().tobytes():
                faults.append(f"{name}: an input was changed")
        errors.append(tolerance.case_errors(case, outcome))
        notes.append(faults)
    return verdicts(tolerance, prepared, errors, notes)


def verdicts(tolerance: Any, prepared: Prepared, errors: list[Mapping[str, Any]], notes: list[list[str]]) -> list[CaseResult]:
    """Case records under the median-and-worst rule: the median rule speaks on every case it is broken by."""
    bounds = prepared.check.bounds
    results = []
    for case, error, faults in zip(prepared.check.cases, errors, notes, strict=True):
        tensors = {}
        for name, bound in bounds.items():
            relative = sorted(e[name].relative for e in errors)
            median = (
                relative[len(relative) // 2]
                if len(relative) % 2
                else 0.5 * (relative[len(relative) // 2 - 1] + relative[len(relative) // 2])
            )
            note = "; ".join(f for f in faults if f.startswith((name, f"state {name}")))
            worst_ok = error[name].relative <= tolerance.RMS_FACTOR * bound.worst
            median_ok = median <= tolerance.RMS_FACTOR * bound.median
            element_ok = error[name].element <= tolerance.ELEMENT_FACTOR * bound.element
            if not median_ok:
                note = (note + "; " if note else "") + f"median over seeds {median:.3g} above {tolerance.RMS_FACTOR * bound.median:.3g}"
            tensors[name] = TensorError(
                rel_rms=finite(error[name].relative), allowed_rel_rms=tolerance.RMS_FACTOR * bound.worst,
                max_element=finite(error[name].element), allowed_max_element=tolerance.ELEMENT_FACTOR * bound.element,
                ok=bool(worst_ok and median_ok and element_ok and not note), note=note,
            )  # fmt: skip
        for fault in faults:
            if not any(fault.startswith((name, f"state {name}")) for name in bounds):
                tensors[fault.split(":")[0]] = broken(fault)
        results.append(CaseResult(probe=prepared.name, seed=case.seed, position=case.position, steps=case.steps, tensors=tensors))
    return results


def broken(note: str) -> TensorError:
    """A fault that has no size: something was written where nothing may be written."""
    return TensorError(rel_rms=1e30, allowed_rel_rms=0.0, max_element=1e30, allowed_max_element=0.0, ok=False, note=note)


def finite(x: float) -> float:
    """JSON has no infinity: a huge number stands for it."""
    return x if math.isfinite(x) else 1e30


def explain(results: Sequence[CaseResult], limit: int = 12) -> str:
    """What an agent can learn from: the wrong tensors, worst first in graph order of the probes."""
    lines = []
    for case in results:
        for name, t in case.tensors.items():
            if not t.ok:
                lines.append(f"{case.probe}: {name}: relative error {t.rel_rms:.3g} (allowed {t.allowed_rel_rms:.3g}), "
                             f"largest element {t.max_element:.3g} rms (allowed {t.allowed_max_element:.3g}) {t.note}".rstrip())  # fmt: skip
    more = f"\n... and {len(lines) - limit} more" if len(lines) > limit else ""
    return "\n".join(lines[:limit]) + more
