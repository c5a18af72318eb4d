"""Whole solutions in Python: built once in a box, then opened in fresh boxes with what their compilers made.

A solution.py under the problem's public contract may compile what it likes while it is imported and during its first steps (inline
C++ or CUDA, Triton). That happens once, in a box of its own with a start of its own, and every later box gets a copy of the
compilers' caches as they were then: nothing that a candidate saw while it was checked or timed reaches another process.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.candidate import Candidate
from sandbox.checking import NAMES, cache_pads, case_file
from sandbox.device import Device
from sandbox.device_box import view_of
from sandbox.isolation import Limits
from sandbox.problem import Problem
from sandbox.records import content_hash
from sandbox.torch_process import SOLUTION, TorchProcess

if TYPE_CHECKING:
    from sandbox.judge import Judge
    from sandbox.judgement import JudgeLimits

BUILD_STEPS = 2
CUDA_THREADS = 512  # processes and threads that PyTorch, the CUDA driver and a parallel build need
CUDA_MEMORY = 48 << 30


def device_options(device: Device) -> dict[str, Any]:
    """What a box with PyTorch must see of a device: its nodes, the driver's libraries, and the CUDA compiler on the path."""
    view = view_of(device)
    toolkit = next((p for p in (Path("/usr/local/cuda"), Path("/opt/cuda")) if (p / "bin" / "nvcc").exists()), None)
    path = [str(Path(sys.executable).parent), *([str(toolkit / "bin")] if toolkit else []), "/usr/bin", "/bin"]
    environment = {**view.environment, "PATH": ":".join(path), "MAX_JOBS": "4"}
    shown = list(view.readonly)
    if toolkit:
        environment["CUDA_HOME"] = str(toolkit)
        if not toolkit.resolve().is_relative_to("/usr"):
            shown.append((toolkit.resolve(), str(toolkit.resolve())))
    return {"devices": view.devices, "environment": environment, "readonly": shown, "start_timeout_s": 120.0}


def form_of(problem: Problem) -> dict[str, Any]:
    """Names of the inputs and forms of the outputs, as a torch child is told."""
    start = problem.interface.start(problem.dims, 1, 0, "ordinary")
    return {"inputs": list(start.inputs), "outputs": {name: (NAMES[dtype], shape) for name, (dtype, shape) in problem.outputs.items()}}


def box_limits(place: Judge, limits: JudgeLimits) -> Limits:
    """Limits of a box that runs PyTorch; on a device its driver needs more of everything."""
    own = place.box_limits(limits)
    if place.device is None:
        return own
    return replace(own, processes=max(own.processes, CUDA_THREADS), memory_bytes=max(own.memory_bytes, CUDA_MEMORY), open_files=4096)


def build(place: Judge, candidate: Candidate, problem: Problem, limits: JudgeLimits) -> tuple[Path, float]:
    """(folder of what the solution's compilers made, seconds it took; 0.0 if it was built before). Failures are the candidate's."""
    key = content_hash([candidate.id, problem.name, problem.size, problem.drawing_hash, place.environment.id, place.device_name])[:32]
    folder = place.cache / "solutions" / key
    if folder.is_dir():
        return folder, 0.0
    started = time.monotonic()
    child = open_solution(place, candidate, problem, limits, None)
    try:
        start = problem.interface.start(problem.dims, problem.context, secrets.randbits(40), "ordinary")
        rows = problem.context + 2 * BUILD_STEPS
        child.prepare(
            "build", case_file(start.inputs, start.state), problem.output_bytes, capacity_pad=cache_pads(problem, start.state, rows)
        )
        child.run_chain("build", steps=BUILD_STEPS, position=problem.context, feed=problem.spec.feed, timeout=limits.wall_s)
        child.box.kill()
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f"{key}.{os.getpid()}.{secrets.token_hex(4)}")
        partial.mkdir(mode=0o755)
        try:
            child.keep_built(partial)
            partial.rename(folder)
        except OSError:  # another judge was faster
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    finally:
        child.close()
    return folder, time.monotonic() - started


def open_solution(place: Judge, candidate: Candidate, problem: Problem, limits: JudgeLimits, built: Path | None,
                  overlay: Path | None = None, seconds: list[float] | None = None) -> TorchProcess:  # fmt: skip
    """A started and loaded child for a solution.py."""
    weights = [problem.weights_file(place.cache), *([overlay] if overlay else [])]
    threads = candidate.threads or place.threads
    child = TorchProcess.for_solution(
        place.walls, box_limits(place, limits), name=problem.folder.name, package=problem.contract_sources(),
        sources={**candidate.files, SOLUTION: candidate.source}, built=built, weights=weights, threads=threads, **place.device_options(),
    )  # fmt: skip
    return _loaded(child, place, problem, threads, limits, seconds, {})


def open_baseline(place: Judge, name: str, problem: Problem, limits: JudgeLimits) -> TorchProcess:
    """A started and loaded child for one of the problem's own PyTorch implementations."""
    known = problem.spec.baselines[name]
    options = place.device_options()
    # Its threads spin as libgomp does by default, then sleep: between two chains the judge waits for that.
    options["environment"] = {"GOMP_SPINCOUNT": "300000", **options.get("environment", {})}
    child = TorchProcess.for_baseline(place.walls, box_limits(place, limits), problem=problem.folder, weights=[problem.weights_file(place.cache)],
                                      threads=place.threads, **options)  # fmt: skip
    return _loaded(child, place, problem, place.threads, limits, None, {"module": known.module, "name": known.cls})


def _loaded(child: TorchProcess, place: Judge, problem: Problem, threads: int, limits: JudgeLimits, seconds: list[float] | None,
            which: dict[str, Any]) -> TorchProcess:  # fmt: skip
    child.__enter__()
    try:
        took = child.load_torch(size=problem.size, threads=threads, device="cuda:0" if place.device is not None else "cpu",
                                timeout=limits.wall_s, **form_of(problem), **which)  # fmt: skip
    except BaseException:
        child.close()
        raise
    if seconds is not None:
        seconds.append(took)
    return child
