"""One lane of judging: a Judge with its problem and the cases that a campaign shares. One lane per device or set of CPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from agents.merger import Bisection, Culprit, failing
from sandbox.box_errors import CompileFailed, CompileLimit, FlagRefused
from sandbox.candidate import Candidate, Implementation
from sandbox.checking import CheckPlan, Prepared, prepare_checks
from sandbox.errors import PlanError
from sandbox.evaluation import Environment, Evaluation, Purpose
from sandbox.judge import Judge, JudgeLimits
from sandbox.problem import Problem
from sandbox.records import Frozen
from sandbox.timing import Effort


class Request(Frozen):
    """One evaluation that a campaign asks for."""

    candidate: Candidate
    purpose: Purpose
    attempt: int = 1
    incumbents: dict[str, Candidate] = {}
    rivals: tuple[str, ...] = ()
    timed: bool = True
    processes: int = 1
    pairs: int = 3
    fresh: bool = False  # cases of its own instead of those the campaign shares
    predicted: dict[str, float] = {}  # seconds by phase


class Compiler:
    """Fills the compile cache ahead of the lane; failures show when the candidate is judged."""

    def __init__(self, cache: str, threads: int, unsafe: bool) -> None:
        self.judge = Judge(Path(cache), threads=threads or None, unsafe=unsafe)

    def compile(self, candidate: Candidate) -> bool:
        """Whether it compiles."""
        try:
            self.judge.compile(candidate)
        except (CompileFailed, CompileLimit, FlagRefused):
            return False
        return True


class Lane:
    """Judges one candidate at a time."""

    def __init__(self, cache: str, problem: str, size: str, threads: int, seeds: int, unsafe: bool = False,
                 say: Callable[[str], None] | None = None) -> None:  # fmt: skip
        self.judge = Judge(Path(cache), threads=threads or None, unsafe=unsafe, progress=say)
        self.problem, self.seeds = Problem.load(problem, size), seeds
        torch.set_num_threads(self.judge.threads)  # an engine may have started this process with one
        self._scratch = tempfile.TemporaryDirectory(prefix="kernelbraid-")
        self._checks: Sequence[Prepared] | None = None

    def environment(self) -> Environment:
        """The machine's facts, as every Evaluation carries them."""
        return self.judge.environment

    @property
    def checks(self) -> Sequence[Prepared]:
        """The secret cases of this campaign, drawn on first use; they never leave the judge's process."""
        if self._checks is None:
            plan = CheckPlan(seeds=self.seeds)
            self._checks = prepare_checks(self.problem, self.judge.weights(self.problem), plan, Path(self._scratch.name))
        return self._checks

    def evaluate(self, request: Request) -> Evaluation:
        """Judge one candidate as asked."""
        effort = Effort(processes=request.processes, pairs=request.pairs, read_pairs=20)
        limits = JudgeLimits(checks=CheckPlan(seeds=self.seeds), effort=effort, rivals=request.rivals, timed=request.timed)
        checks = None
        if request.candidate.role == "stage":
            limits = JudgeLimits(checks=CheckPlan(seeds=1), timed=request.timed, stage_repeats=12)
        elif not request.fresh:
            checks = self.checks
        return self.judge.evaluate(
            request.candidate, self.problem, limits, purpose=request.purpose, attempt=request.attempt,
            incumbents=request.incumbents, checks=checks, predicted=request.predicted,
        )  # fmt: skip

    def bisect(self, evaluation: Evaluation, candidate: Candidate, chosen: Mapping[str, Implementation],
               good: Mapping[str, Implementation]) -> tuple[list[Culprit], list[Evaluation]]:  # fmt: skip
        """Who is guilty of a megakernel's failure: stages are swapped back to the last good ones, on the same cases."""
        if candidate.plan is None:
            raise PlanError("only a megakernel that was assembled here can be bisected")
        bisection = Bisection(self.judge, self.problem, candidate.plan, chosen, good, JudgeLimits(), failing(evaluation, self.checks))
        return bisection.find(), bisection.evaluations

    def close(self) -> None:
        """Give the shared cases' files back."""
        self._scratch.cleanup()
