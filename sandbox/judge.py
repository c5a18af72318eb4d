"""The judge. `Judge.evaluate` is the only door: a candidate and a problem go in, an Evaluation comes out.

What a candidate does wrong is a status, never an exception. What is *not* covered yet: a candidate can still tell a
correctness run from a timed one by the number of steps; profiler evidence of launches (the count here is the runtime's own,
and says so); GPUs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sandbox.box_errors import (
    BoxError,
    ChildCrashed,
    ChildError,
    ChildHung,
    ChildLimit,
    ChildRaised,
    ChildRefused,
    CompileFailed,
    CompileLimit,
    FlagRefused,
    NoWallsError,
)
from sandbox.candidate import Candidate
from sandbox.checking import Prepared
from sandbox.child_process import ChildProcess
from sandbox.compiler import QUIET_FLAGS, Compiled, compile_cpu, host_flags
from sandbox.device import Device
from sandbox.environment import describe_environment, usable_cpus
from sandbox.errors import UnavailableError
from sandbox.evaluation import Evaluation, Purpose, Status
from sandbox.isolation import Limits
from sandbox.judgement import SPARE_ROWS, JudgeLimits, Judgement
from sandbox.problem import Problem
from sandbox.quiet import on_cpus, on_device, working
from sandbox.solutions import build, device_options, open_baseline, open_solution
from sandbox.stage_checking import CasePool
from sandbox.walls import Walls, probe_walls

__all__ = ["Judge", "JudgeLimits"]


class Judge:
    """Everything an evaluation needs that is not the candidate: walls, caches, the environment's facts."""

    def __init__(self, cache: Path, *, walls: Walls | None = None, unsafe: bool = False, threads: int | None = None,
                 device: Device | None = None, progress: Callable[[str], None] | None = None) -> None:  # fmt: skip
        """cache: folder for compiled libraries and weights. device: judge candidates for cuda on it, instead of those for cpu.
        Raises NoWallsError where nothing can contain a candidate."""
        self.cache, self.device = cache, device
        self.walls = walls if walls is not None else probe_walls(unsafe=unsafe)
        cpus = usable_cpus()
        if threads is not None and threads > len(cpus):
            raise UnavailableError(f"{threads} threads were asked for, but this process may use {len(cpus)} CPUs: ask for fewer")
        self.cpus = cpus[: threads or None]
        self.spare = cpus[threads:] if threads else []  # compiling there disturbs no timing
        self.progress = progress or (lambda text: None)
        self.environment = describe_environment(self.walls, device)
        self.cases = CasePool()
        cache.mkdir(parents=True, exist_ok=True)

    @property
    def threads(self) -> int:
        """Threads a CPU candidate runs with by default: all the CPUs this process may use."""
        return len(self.cpus)

    @functools.cached_property
    def _weights(self) -> dict[tuple[str, str], Mapping[str, torch.Tensor]]:
        return {}

    def weights(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """The ordinary weights of a problem, loaded once."""
        key = (problem.name, problem.size)
        if key not in self._weights:
            self._weights.clear()
            loaded = problem.load_weights(self.cache)
            if self.device is not None:  # truth and bounds are computed there, while no candidate runs
                os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's order
                loaded = {name: tensor.to(torch.device("cuda", self.device.index)) for name, tensor in loaded.items()}
            self._weights[key] = loaded
        return self._weights[key]

    # -- children ------------------------------------------------------------------------------------------------

    def compile(self, candidate: Candidate) -> Compiled:
        """The candidate's library, compiled in a box or found in the cache."""
        flags = (*host_flags(), *QUIET_FLAGS, *candidate.flags)
        with contextlib.ExitStack() as stack:
            stack.enter_context(working(self.spare or self.cpus))
            if self.spare:
                stack.enter_context(on_cpus(self.spare))
            return compile_cpu(candidate.source, flags=flags, cache_dir=self.cache / "libraries", walls=self.walls)

    def open_candidate(self, candidate: Candidate, library: Path, problem: Problem, limits: JudgeLimits, overlay: Path | None = None,
                       seconds: list[float] | None = None) -> ChildProcess:  # fmt: skip
        """A started and loaded child for a compiled candidate."""
        weights = [problem.weights_file(self.cache), *([overlay] if overlay else [])]
        threads = candidate.threads or self.threads
        child = ChildProcess.for_library(self.walls, self.box_limits(limits), library=library, weights=weights)
        child.__enter__()
        try:
            cpus = [self.cpus[i % len(self.cpus)] for i in range(threads)]
            took = child.load(threads=threads, max_position=problem.context + SPARE_ROWS, cpus=cpus, timeout=limits.wall_s)
        except BaseException:
            child.close()
            raise
        if seconds is not None:
            seconds.append(took)
        return child

    def open_compiled(self, candidate: Candidate, problem: Problem, limits: JudgeLimits) -> ChildProcess:
        """Compile (or find) and open a candidate."""
        return self.open_candidate(candidate, self.compile(candidate).path, problem, limits)

    def open_rival(self, name: str, problem: Problem, limits: JudgeLimits) -> ChildProcess:
        """A started and loaded child for one of the problem's PyTorch implementations, with as many threads."""
        if name not in problem.spec.baselines:
            raise UnavailableError(f"problem '{problem.name}' has no baseline '{name}'; it has {sorted(problem.spec.baselines)}")
        return open_baseline(self, name, problem, limits)

    def made(self, candidate: Candidate, problem: Problem, limits: JudgeLimits) -> tuple[Path, float]:
        """(what compilers made of a candidate, seconds): a library, or the caches of a solution.py."""
        if candidate.language == "python":
            with working(self.cpus):
                return build(self, candidate, problem, limits)
        compiled = self.compile(candidate)
        return compiled.path, compiled.seconds

    def open(self, candidate: Candidate, made: Path, problem: Problem, limits: JudgeLimits, overlay: Path | None = None,
             seconds: list[float] | None = None) -> ChildProcess:  # fmt: skip
        """A started and loaded child for a candidate, from what its compilers made."""
        opener = open_solution if candidate.language == "python" else Judge.open_candidate
        return opener(self, candidate, problem=problem, limits=limits, overlay=overlay, seconds=seconds,
                      **{"built" if candidate.language == "python" else "library": made})  # fmt: skip

    def box_limits(self, limits: JudgeLimits) -> Limits:
        """Limits of a candidate's box."""
        return Limits(wall_s=limits.wall_s, cpu_s=int(limits.wall_s * max(2, self.threads)), memory_bytes=limits.memory_bytes,
                      processes=limits.processes)  # fmt: skip

    @property
    def device_name(self) -> str:
        """What results on a device are filed under."""
        return self.device.uuid if self.device is not None else "cpu"

    def device_options(self) -> dict[str, Any]:
        """What a box needs to see of the device."""
        return device_options(self.device) if self.device is not None else {}

    # -- the door ------------------------------------------------------------------------------------------------

    def evaluate(self, candidate: Candidate, problem: Problem, limits: JudgeLimits, *, purpose: Purpose = Purpose.SEARCH, attempt: int = 1,
                 incumbents: Mapping[str, Candidate] | None = None, checks: Sequence[Prepared] | None = None,
                 predicted: Mapping[str, float] | None = None) -> Evaluation:  # fmt: skip
        """Compile, check, count and time one candidate.

        incumbents: other candidates to pair with, by name. checks: cases prepared before (bisection judges many variants of
        one megakernel on the same cases); by default fresh ones are drawn. predicted: seconds per phase, shown beside stamps.
        """
        started = time.monotonic()
        run = Judgement(self, candidate, problem, limits, incumbents or {}, checks, predicted or {})
        try:
            with on_device(self.device.uuid) if self.device is not None else contextlib.nullcontext(0.0) as waited:
                started += waited  # for a device that another evaluation holds: not this one's time
                run.judge()
        except (CompileFailed, FlagRefused) as error:
            run.fail(Status.COMPILE_ERROR, getattr(error, "log", "") or str(error))
        except CompileLimit as error:
            run.fail(Status.LIMIT, f"{error}\n{error.log}")
        except ChildHung as error:
            run.fail(Status.HANG, f"{error}\n{error.log}")
        except ChildLimit as error:
            run.fail(Status.LIMIT, f"{error}\n{error.log}")
        except ChildCrashed as error:
            run.fail(Status.CRASH, f"{error}\n{error.log}")
        except ChildRaised as error:
            run.fail(Status.CRASH if run.built else Status.COMPILE_ERROR, f"{error}\n{error.log}")
        except ChildRefused as error:
            run.fail(Status.HANG if "hang:" in str(error) else Status.RULE_BROKEN, f"{error}\n{error.log}")
        except ChildError as error:
            run.fail(Status.RULE_BROKEN, f"{error}\n{error.log}")
        except (NoWallsError, UnavailableError) as error:
            run.fail(Status.UNAVAILABLE, str(error))
        except (BoxError, OSError) as error:
            run.fail(Status.INFRASTRUCTURE, f"{type(error).__name__}: {error}")
        return run.record(purpose, attempt, time.monotonic() - started)
