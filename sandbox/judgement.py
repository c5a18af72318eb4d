"""One evaluation under way: check, count, time, and what to make of it. `Judge.evaluate` drives it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sandbox.box_errors import CompileFailed
from sandbox.candidate import Candidate
from sandbox.checking import CheckPlan, Prepared, explain, prepare_checks, run_cases
from sandbox.child_process import ChildProcess
from sandbox.device import read_facts
from sandbox.errors import UnavailableError
from sandbox.evaluation import CaseResult, Evaluation, Interval, PhaseTime, Purpose, Standing, Status, Times
from sandbox.graph import Node
from sandbox.intervals import interval, ratios
from sandbox.problem import Problem
from sandbox.quiet import timing, working
from sandbox.stage_checking import StageCase
from sandbox.timing import ONCE, SLOPE_GAP, Effort, Measured, Rival, as_ours, measure, read_share, verify_chain

if TYPE_CHECKING:
    from sandbox.judge import Judge

LOG_CHARS = 6000
NOISE = 1.5  # an interval of the step time wider than this ratio says more about the machine than about the candidate
MIN_CLEAR = 0.1  # share of the steps asked about, over all timed chains, that could be compared (see verify_chain)
DEVICE_CLOCK = "parent, wall: the slope over chains of two secret lengths; device events are the candidate's word, within 5 % of it"
MOST_KINDS = 24  # kinds of launches that a record names
DEVICE_GAP = 0.05  # the same as SLOPE_GAP, where events on a device make the time
SPARE_ROWS = 64  # cache rows beyond the context that a candidate must have room for


def launches_of(kinds: Mapping[str, float]) -> float:
    """Launches per step: kernels, copies and sets on the device; a graph counts by what it launches."""
    return sum(n for kind, n in kinds.items() if kind not in ("graph", ONCE))


def shortened(log: str) -> str:
    """The judge's sentence at the head of a log, and the end of what the candidate printed."""
    if len(log) <= LOG_CHARS:
        return log
    return f"{log[: LOG_CHARS // 4]}\n[{len(log) - LOG_CHARS} characters left out]\n{log[-3 * LOG_CHARS // 4 :]}"


@dataclass(frozen=True)
class JudgeLimits:
    """What one evaluation may use and how much it measures. `timed=False` checks only."""

    wall_s: float = 900.0
    step_s: float = 60.0
    memory_bytes: int = 10 << 30
    processes: int = 64
    checks: CheckPlan = field(default_factory=CheckPlan)
    effort: Effort = field(default_factory=Effort)
    rivals: tuple[str, ...] = ()
    timed: bool = True
    stage_repeats: int = 15
    max_launches: int | None = None  # instead of the problem's: to look at somebody's kernel, never to admit it
    graphs: bool = False  # allow graphs where the problem denies them


class Judgement:
    """One evaluation under way; every field ends in the record."""

    def __init__(self, judge: Judge, candidate: Candidate, problem: Problem, limits: JudgeLimits, incumbents: Mapping[str, Candidate],
                 checks: Sequence[Prepared] | None, predicted: Mapping[str, float]) -> None:  # fmt: skip
        self.place, self.candidate, self.problem, self.limits = judge, candidate, problem, limits
        self.incumbents, self.given, self.predicted = incumbents, checks, predicted
        self.status: Status = Status.INFRASTRUCTURE
        self.log = "the judge did not finish"
        self.standing = Standing.PROVISIONAL
        self.cases: list[CaseResult] = []
        self.times: Times | None = None
        self.dispatches: float | None = None
        self.launches: dict[str, float] = {}
        self.facts: list[dict[str, Any]] = []
        self.built = False
        self.compile_seconds = 0.0
        self.load_seconds: list[float] = []
        self.peak = 0

    def fail(self, status: Status, log: str) -> None:
        self.status, self.log, self.times = status, log, None
        self.standing = Standing.PROVISIONAL

    def record(self, purpose: Purpose, attempt: int, seconds: float) -> Evaluation:
        wrong = self.status is Status.WRONG
        c = self.candidate
        return Evaluation(
            problem=self.problem.name, size=self.problem.size, candidate=c.id, candidate_name=c.name, role=c.role, node=c.node,
            environment=self.place.environment, purpose=purpose, attempt=attempt, status=self.status, standing=self.standing,
            cases=tuple(self.cases) if wrong or self.status is Status.PASSED else (), times=self.times, dispatches_per_step=self.dispatches,
            dispatch_evidence="" if self.dispatches is None else "profiler" if self.launches else "runtime",
            dispatch_policy=self.problem.spec.max_launches if self.place.device is not None else self.problem.spec.max_dispatches,
            launches=self.launches, device_facts=tuple(self.facts),
            compile_seconds=self.compile_seconds, load_seconds=statistics.median(self.load_seconds) if self.load_seconds else 0.0,
            peak_bytes=self.peak, log=shortened(self.log), seconds=seconds, load_average=os.getloadavg()[0],
        )  # fmt: skip

    def look_at_device(self, when: str) -> None:
        """Note clocks, power and other users of the device."""
        if self.place.device is not None:
            self.facts.append(read_facts(self.place.device, when).model_dump(mode="json"))

    def judge(self) -> None:
        target = "cuda" if self.place.device is not None else "cpu"
        if self.candidate.target != target:
            raise UnavailableError(f"this judge runs candidates for {target}; '{self.candidate.name}' is for {self.candidate.target}")
        if target == "cuda" and self.candidate.language != "python":
            raise UnavailableError("for cuda, solutions in Python are judged; assembled CUDA kernels come with the CUDA emitter")
        if self.candidate.role == "stage" and self.candidate.node not in self.problem.graph.by_name:
            raise CompileFailed(f"the problem has no stage '{self.candidate.node}'")
        self.made, self.compile_seconds = self.place.made(self.candidate, self.problem, self.limits)
        self.built = True
        (self.judge_stage if self.candidate.role == "stage" else self.judge_solution)()

    def open(self, overlay: Path | None = None) -> ChildProcess:
        return self.place.open(self.candidate, self.made, self.problem, self.limits, overlay, self.load_seconds)

    @property
    def rows(self) -> int:
        return self.problem.context + SPARE_ROWS

    def saw(self, child: ChildProcess) -> None:
        self.peak = max(self.peak, child.report().peak_memory_bytes or 0)

    # -- one stage -----------------------------------------------------------------------------------------------

    def judge_stage(self) -> None:
        node = self.problem.graph.by_name[self.candidate.node]
        weights = self.place.weights(self.problem)
        contexts = [self.problem.context] * self.limits.checks.seeds
        if node.layer == self.problem.graph.nodes[-1].layer:
            contexts.append(3)
        with contextlib.ExitStack() as stack:
            with working(self.place.cpus):
                child = stack.enter_context(contextlib.closing(self.open()))
                for context in contexts:
                    case = self.stage_case(weights, node, context)
                    self.cases.append(case.judge(child, self.rows, self.limits.step_s))
            if not all(c.ok for c in self.cases):
                self.status, self.log = Status.WRONG, explain(self.cases)
                return
            self.status, self.log = Status.PASSED, ""
            if self.limits.timed:
                with working(self.place.cpus):
                    case = self.stage_case(weights, node, self.problem.context)
                times = self.time_stage(child, case)
                with working(self.place.cpus):
                    again = self.stage_case(weights, node, self.problem.context).judge(child, self.rows, self.limits.step_s)
                self.cases.append(again)
                if not again.ok:
                    self.fail(Status.CHEATING, "right when checked, wrong after it was timed:\n" + explain(self.cases))
                    return
                self.times = times
            self.saw(child)

    def stage_case(self, weights: Mapping[str, torch.Tensor], node: Node, context: int) -> StageCase:
        """A case that this evaluation has not seen."""
        return StageCase(self.problem, weights, node, self.place.cases.draw(self.problem, weights, context))

    def time_stage(self, child: ChildProcess, case: StageCase) -> Times:
        """Cold steps by the stamps of the slowest block, in turn with the incumbents of the same stage.

        An estimate by the candidate's own clock: it ranks proposals and feeds the phase model, and proves nothing."""
        with contextlib.ExitStack() as stack:
            others = {}
            for name, other in self.incumbents.items():
                rival = stack.enter_context(
                    contextlib.closing(as_ours(functools.partial(self.place.open_compiled, other, self.problem, self.limits)))
                )
                others[name] = rival
            for each in (child, *others.values()):
                case.judge(each, self.rows, self.limits.step_s)  # binds the case, and touches fresh memory
            own: list[float] = []
            pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in others}
            with timing(self.place.cpus):
                for turn in range(self.limits.stage_repeats):
                    seconds = {}
                    order: list[tuple[str, ChildProcess]] = [("", child), *others.items()]
                    for name, each in order if turn % 2 == 0 else reversed(order):
                        seconds[name] = self.cold_step(each, case.position)
                    own.append(seconds[""])
                    for name in others:
                        pairs[name].append((seconds[""], seconds[name]))
        low, high = sorted(own)[len(own) // 10], sorted(own)[-1 - len(own) // 10]
        step = Interval(median=statistics.median(own), low=low, high=high, pairs=len(own),
                        of="seconds of the slowest block, cold caches, 10-90 % of calls")  # fmt: skip
        vs = {name: interval(ratios([group]), f"stage alone vs {name}, child's clock") for name, group in pairs.items()}
        return Times(step_seconds=step, vs=vs, clock="child, estimate: for the phase model, never for admission")

    def cold_step(self, child: ChildProcess, position: int) -> float:
        """Seconds of one step of a stage alone after the caches were filled with other bytes; waking the blocks up is not the stage's."""
        child.call("evict", bytes=96 << 20)
        child.run_chain("check", steps=1, position=position, timeout=self.limits.step_s)
        with child.reading("stamps"):
            ns = child.call("stamps", self.limits.step_s)["ns"]
            return max(float(ns[i + 1] - ns[i]) for i in range(0, len(ns), 3)) / 1e9

    # -- a whole step --------------------------------------------------------------------------------------------

    def judge_solution(self) -> None:
        with tempfile.TemporaryDirectory(prefix="kernelbraid-") as folder:
            prepared = self.given
            if prepared is None:
                with working(self.place.cpus):
                    prepared = prepare_checks(self.problem, self.place.weights(self.problem), self.limits.checks, Path(folder))
            self.place.progress(f"  {self.candidate.name}: checking under {', '.join(c.name for c in prepared)} weights")
            for check in prepared:
                with working(self.place.cpus), contextlib.closing(self.open(check.overlay)) as child:
                    before = child.dispatches(self.limits.step_s) if child.counts_dispatches else 0
                    self.cases += run_cases(child, self.problem, check, self.rows, self.limits.step_s)
                    if child.counts_dispatches:
                        steps = sum(c.steps for c in check.check.cases)
                        self.dispatches = max(self.dispatches or 0.0, (child.dispatches(self.limits.step_s) - before) / steps)
                    self.saw(child)
            if not all(c.ok for c in self.cases):
                self.status, self.log = Status.WRONG, explain(self.cases)
                return
            if self.too_many_dispatches():
                return
            self.status, self.log = Status.PASSED, ""
            if self.limits.timed:
                self.time_solution(prepared)

    def too_many_dispatches(self) -> bool:
        """The gate on launches: what the runtime counted against what the problem allows."""
        allowed = self.problem.spec.max_dispatches
        over = allowed is not None and (self.dispatches or 0.0) > allowed
        if over:
            self.fail(Status.RULE_BROKEN, f"{self.dispatches} dispatches per step; the problem allows {allowed}")
        return over

    def time_solution(self, prepared: Sequence[Prepared]) -> None:
        """Time it, every process under other weights: a time hardly depends on values, but what a timed chain leaves out (a
        candidate can tell it from a check by its steps) shows only under the probe that was made for it."""
        place, problem, limits = self.place, self.problem, self.limits
        known = problem.spec.baselines
        rivals = [
            Rival(name, functools.partial(place.open_rival, name, problem, limits), known[name].chain if name in known else None)
            for name in limits.rivals
        ]
        for name, other in self.incumbents.items():  # compiled before the clock: a compiler beside a timing would be waited for
            made, _ = as_ours(functools.partial(place.made, other, problem, limits))
            rivals.append(Rival(name, functools.partial(place.open, other, made, problem, limits)))
        secret = secrets.SystemRandom()
        usable = [(c.name, c.overlay, c.check.weights) for c in prepared if c.context == problem.context]
        usable = usable or [("ordinary", None, place.weights(problem))]
        drawn: list[tuple[str, Path | None, Mapping[str, torch.Tensor]]] = []
        while len(drawn) < limits.effort.processes:
            drawn += secret.sample(usable, len(usable))
        turn, compared, asked = iter(drawn), 0, 0
        self.look_at_device("before timing")
        with timing(place.cpus):
            measured = measure(problem, lambda: self.open(next(turn)[1]), rivals, limits.effort, limits.step_s, self.rows,
                               [name for name, _, _ in drawn], place.device is not None, place.progress)  # fmt: skip
        self.look_at_device("after timing")
        # Where the truth costs more than the candidate, one chain to its end and a share of the others; nobody knows which before.
        whole, share_of = secret.randrange(len(measured.chains)), problem.spec.verified_steps.get(problem.size)
        for number, (case, steps, collected, process) in enumerate(measured.chains):
            name, _, weights = drawn[process]
            length = steps if number == whole or share_of is None else min(steps, share_of)
            with working(place.cpus):
                fault, clear = verify_chain(problem, weights, case, length, collected)
            place.progress(f"  a timed chain under {name} weights: {clear} of {length} steps route clearly and were compared")
            compared, asked = compared + clear, asked + length
            if fault:
                self.fail(Status.CHEATING, f"right when checked, wrong when timed, under {name} weights: {fault}")
                return
        if measured.dispatches:
            self.dispatches = max(self.dispatches or 0.0, *measured.dispatches)
        if self.too_many_dispatches() or not self.count_launches(measured):
            return
        phases: tuple[PhaseTime, ...] = ()
        share = None
        if self.candidate.plan is not None:
            with timing(place.cpus), contextlib.closing(self.open()) as child:
                phases, share = self.inspect(child)
                self.saw(child)
        once = statistics.median(measured.once) if measured.once else None
        clock = {"clock": DEVICE_CLOCK} if place.device is not None else {}
        self.times = Times(step_seconds=measured.step_interval(), vs=measured.speedups(), device_seconds=measured.device_interval(),
                           once_seconds=once, **clock,
                           read_pass_share=share, phases=phases)  # fmt: skip
        self.standing = self.settle(measured, share, compared < asked * MIN_CLEAR)

    def count_launches(self, measured: Measured) -> bool:
        """The gate on launches of a device: what the profiler counted on the timed path against what the problem allows. The largest
        count of all processes stands; without a count nothing passes."""
        if self.place.device is None:
            return True
        if not measured.launches or not all(measured.launches):
            self.fail(Status.UNAVAILABLE, "the profiler saw no work on the device in a timed chain, so launches cannot be counted")
            return False
        most = max(measured.launches, key=launches_of)
        self.launches = {kind: round(n, 4) for kind, n in sorted(most.items(), key=lambda entry: -entry[1])[:MOST_KINDS]}
        self.dispatches, graphs = round(launches_of(most), 4), most.get("graph", 0.0)
        spec = self.problem.spec
        allowed = self.limits.max_launches if self.limits.max_launches is not None else spec.max_launches
        if graphs and spec.graphs == "denied" and not self.limits.graphs:
            self.fail(Status.RULE_BROKEN, f"{graphs:g} graph launches per step; the problem denies graphs")
            return False
        if allowed is not None and self.dispatches > allowed:
            self.fail(Status.RULE_BROKEN, f"{self.dispatches:g} launches per step ({self.launches}); the problem allows {allowed}")
            return False
        return True

    def settle(self, measured: Measured, share: Interval | None, unclear: bool) -> Standing:
        """Confirmed only if measured over five process pairs, the slope agrees with the mean, and no byte bound is beaten."""
        if unclear:
            self.log = "quarantined: in the timed chains too few steps route clearly, so too little could be compared with the truth"
            return Standing.QUARANTINED
        if share is not None and share.low > 1.0:
            self.log = f"quarantined: a step takes less time than reading its bytes once ({share.median:.2f} of it)"
            return Standing.QUARANTINED
        step = measured.step_interval()
        if step.high > NOISE * step.low:
            self.log = (f"quarantined: the step time spreads from {1e6 * step.low:.0f} to {1e6 * step.high:.0f} us between processes; "
                        "measure again on a quiet machine")  # fmt: skip
            return Standing.QUARANTINED
        gap, allowed = measured.slope_gap(), SLOPE_GAP if self.place.device is None else DEVICE_GAP
        if gap > allowed:
            self.log = f"quarantined: the slope over chain lengths lies {gap:.0%} above the reported step time (allowed {allowed:.0%})"
            return Standing.QUARANTINED
        if self.place.device is not None and (self.limits.max_launches is not None or self.limits.graphs):
            self.log = "provisional: judged under another launch policy than the problem's"
            return Standing.PROVISIONAL
        return Standing.CONFIRMED if len(measured.own) >= 5 else Standing.PROVISIONAL

    def inspect(self, child: ChildProcess) -> tuple[tuple[PhaseTime, ...], Interval | None]:
        """Stamps per phase and the share of the read pass, where the candidate is one of our assembled kernels."""
        share, _ = read_share(child, self.problem, self.limits.effort, self.rows, self.limits.step_s)
        with child.reading("describe"):
            described = json.loads(child.call("describe", self.limits.step_s)["text"])
            names = [str(p["name"]) for p in described["phases"]]
            blocks, page_bytes = int(described["blocks"]), [int(p["page_bytes"]) for p in described["phases"]]
        samples: list[list[float]] = []
        syncs: list[list[float]] = []
        for _ in range(self.limits.effort.read_pairs):
            child.run_chain("read", steps=1, position=self.problem.context, timeout=self.limits.step_s)
            with child.reading("stamps"):
                ns = child.call("stamps", self.limits.step_s)["ns"]
                if len(ns) != blocks * 3 * len(names):
                    raise ValueError(f"{len(ns)} stamps of {blocks} blocks and {len(names)} phases")
                per = [ns[b * 3 * len(names) : (b + 1) * 3 * len(names)] for b in range(blocks)]
                ends = [max(row[3 * p + 2] for row in per) / 1e3 for p in range(len(names))]
                samples.append([end - (ends[p - 1] if p else 0.0) for p, end in enumerate(ends)])
                syncs.append([end - statistics.fmean(row[3 * p + 1] for row in per) / 1e3 for p, end in enumerate(ends)])
        return tuple(
            PhaseTime(name=name, predicted_us=1e6 * self.predicted.get(name, 0.0), stamped_us=statistics.median(s[p] for s in samples),
                      bytes=page_bytes[p], sync_us=statistics.median(s[p] for s in syncs))
            for p, name in enumerate(names)
        ), share  # fmt: skip
