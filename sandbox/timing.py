"""Times from outside: interleaved chains of a candidate and its rivals in fresh processes, never calls of one process alone.

A sample is the wall time, by the parent's clock, of a chain of a secret number of steps, divided by that number; token and
state are fresh for every chain and the token arrives inside the timed span. The slope between chains of two lengths bounds
what a candidate could hide outside its steps, and one chain of every process is compared with the truth afterwards.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from sandbox.box_errors import BoxError, ChildError, CompileFailed, CompileLimit
from sandbox.checking import cache_pads, case_file, to_tensor
from sandbox.child_process import ChildProcess, Collected
from sandbox.evaluation import Interval
from sandbox.intervals import interval, ratios
from sandbox.problem import Problem

T = TypeVar("T")
SETTLE_S = 0.02  # between two timed chains: the other side's threads go to sleep
SLOPE_GAP = 0.10
CHAIN_S = 0.03  # a long chain of this length is timed to about a percent: a pipe and waking the team cost 0.1 ms
LEAST_CHAIN = 16  # steps


@dataclass(frozen=True)
class Effort:
    """How much is measured. Chains of `short` to `short + spread` and `long` to `long + spread` steps; where a step takes long,
    chains of fewer steps last as long as it takes to time them (`CHAIN_S`)."""

    processes: int = 5
    pairs: int = 6
    short: int = 12
    long: int = 40
    spread: int = 8
    read_pairs: int = 40

    def for_step(self, seconds: float) -> Effort:
        """The same with chains as short as a step of this time allows."""
        long = min(self.long, max(LEAST_CHAIN, round(CHAIN_S / seconds)))
        return dataclasses.replace(self, long=long, short=max(2, round(self.short * long / self.long)))


@dataclass
class Rival:
    """Something the candidate is paired with: `open` starts a loaded child for it. Its chains are as long as the candidate's,
    so that what a chain costs once weighs the same, or `steps` long where a step takes so long that this does not matter."""

    name: str
    open: Callable[[], ChildProcess]
    steps: int | None = None


@dataclass
class Measured:
    """Raw samples: seconds per step of the candidate and of each rival, paired, by process."""

    own: list[list[float]] = field(default_factory=list)
    pairs: dict[str, list[list[tuple[float, float]]]] = field(default_factory=dict)
    short: list[tuple[int, float]] = field(default_factory=list)
    long: list[tuple[int, float]] = field(default_factory=list)
    chains: list[tuple[Any, int, Collected]] = field(default_factory=list)  # one verified chain a process
    dispatches: list[float] = field(default_factory=list)  # per step on the timed path, one count a process

    def step_interval(self) -> Interval:
        """Seconds per step."""
        return interval(self.own, "seconds per step")

    def speedups(self) -> dict[str, Interval]:
        """Rival seconds over candidate seconds, by rival."""
        return {name: interval(ratios(groups), f"speedup vs {name}") for name, groups in self.pairs.items()}

    def slope_gap(self) -> float:
        """How far the slope of wall time over chain length lies above the mean time of a long chain, as a fraction of it.

        What a chain costs once (waking the threads, the pipe) makes the mean larger than the slope: the time we report is
        then too long, never too short. A slope above the mean says that part of a chain's work was not in its time."""
        slopes = []
        for (n1, t1), (n2, t2) in zip(self.short, self.long, strict=True):
            slopes.append((t2 - t1) / (n2 - n1))
        mean = statistics.median(t / n for n, t in self.long)
        return (statistics.median(slopes) - mean) / mean


def one_chain(child: ChildProcess, problem: Problem, steps: int, rows: int, timeout: float) -> tuple[float, Any]:
    """Wall seconds of one chain on a fresh case, and the case. The token is junk until the clock runs."""
    context = problem.context
    token, state = problem.module("definition").make_case(problem.dims, context, secrets.randbits(40))
    case = _Start(token, state)
    decoy = _Start(torch.zeros_like(token), state)
    child.prepare("timed", case_file(decoy), {"hidden": 2 * problem.dims.hidden},
                  capacity_pad=cache_pads(problem, state, rows))  # fmt: skip
    time.sleep(SETTLE_S)
    fresh = {"token": token.view(torch.uint8).numpy().tobytes()}
    times = child.run_chain("timed", steps=steps, position=context, feed=problem.spec.feed, fresh=fresh, timeout=timeout)
    return times.outside_ns / 1e9, case


@dataclass(frozen=True)
class _Start:
    token: torch.Tensor
    state: Mapping[str, torch.Tensor]


def as_ours(act: Callable[[], T]) -> T:
    """A rival's failure is the judge's trouble, never the candidate's status."""
    try:
        return act()
    except (ChildError, CompileFailed, CompileLimit) as error:
        raise BoxError(f"a rival failed, so there is nothing to compare with: {error}") from error


def measure(problem: Problem, open_candidate: Callable[[], ChildProcess], rivals: Sequence[Rival], effort: Effort, timeout: float,
            rows: int, say: Callable[[str], None] = lambda text: None) -> Measured:  # fmt: skip
    """Fresh processes, `effort.pairs` interleaved rounds in each; the order of a round alternates."""
    out = Measured(pairs={r.name: [] for r in rivals})
    for number in range(effort.processes):
        say(f"  timing: process pair {number + 1} of {effort.processes}")
        with contextlib.ExitStack() as stack:
            child, others = _open_all(stack, open_candidate, rivals)
            own: list[float] = []
            paired: dict[str, list[tuple[float, float]]] = {r.name: [] for r in rivals}
            one_chain(child, problem, 2, rows, timeout)  # first touch of fresh memory is not the step
            if number == 0:
                effort = effort.for_step(one_chain(child, problem, 4, rows, timeout)[0] / 4)
            for _, other in others:
                as_ours(lambda other=other: one_chain(other, problem, 1, rows, timeout))  # type: ignore[misc]
            before, steps = child.dispatches(timeout), 0
            keep = secrets.randbelow(effort.pairs)
            for round_ in range(effort.pairs):
                lengths = (effort.short + secrets.randbelow(effort.spread + 1), effort.long + secrets.randbelow(effort.spread + 1))
                assert problem.context + max(lengths) <= rows
                theirs: dict[str, float] = {}
                mine = 0.0
                turns = [None, *others]
                for turn in turns if round_ % 2 == 0 else reversed(turns):
                    if turn is None:
                        short, _ = one_chain(child, problem, lengths[0], rows, timeout)
                        long, case = one_chain(child, problem, lengths[1], rows, timeout)
                        out.short.append((lengths[0], short))
                        out.long.append((lengths[1], long))
                        mine = long / lengths[1]
                        steps += sum(lengths)
                        # Collected every time: its hash must be the one the child gave when the clock stopped.
                        collected = child.collect("timed", timeout)
                        if round_ == keep:
                            out.chains.append((case, lengths[1], collected))
                    else:
                        rival, other = turn
                        length = rival.steps or lengths[1]
                        seconds, _ = as_ours(lambda: one_chain(other, problem, length, rows, timeout))  # noqa: B023
                        theirs[rival.name] = seconds / length
                own.append(mine)
                for name, seconds in theirs.items():
                    paired[name].append((mine, seconds))
            out.own.append(own)
            out.dispatches.append((child.dispatches(timeout) - before) / steps)
            for name, group in paired.items():
                out.pairs[name].append(group)
    return out


def _open_all(
    stack: contextlib.ExitStack, open_candidate: Callable[[], ChildProcess], rivals: Sequence[Rival]
) -> tuple[ChildProcess, list[tuple[Rival, ChildProcess]]]:
    """All children of one process pair, started side by side; those that came up are closed by the stack whatever happens.

    A box dies with the thread that started it, so the threads live as long as the stack does."""

    def opened(act: Callable[[], ChildProcess]) -> ChildProcess:
        child = act()
        stack.callback(child.close)
        return child

    pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1 + len(rivals)))
    own = pool.submit(opened, open_candidate)
    theirs = [pool.submit(opened, functools.partial(as_ours, r.open)) for r in rivals]
    concurrent.futures.wait([own, *theirs])  # all of them, so that none is started after the stack was unwound
    return own.result(), [(r, f.result()) for r, f in zip(rivals, theirs, strict=True)]


def verify_chain(problem: Problem, weights: Mapping[str, torch.Tensor], case: Any, steps: int, collected: Collected) -> tuple[str, int]:
    """Compare the first `steps` outputs of a timed chain with the truth: (what is wrong or "", steps that could be compared).

    Truth and the bf16 baseline walk along the candidate's own tokens, so an error does not grow from step to step by
    itself. Steps in which two experts nearly tie (as in `draw_case`) say nothing and are left out. Of the others the median
    error must be at most twice the baseline's there, and none may exceed four times the baseline's worst."""
    tolerance, reference = problem.module("tolerance"), problem.module("reference")
    baseline = problem.module("baseline").MaterialisingBaseline(problem.dims, weights)
    truth = reference.Truth(problem.dims, weights, torch.float32)
    states = [{k: v.clone() for k, v in case.state.items()} for _ in range(2)]
    token = case.token
    own, honest = [], []
    for i in range(steps):
        trace: dict[str, Any] = {}
        exact = truth.step(token, states[0], problem.context + i, trace)
        rough = baseline.step(token, states[1], problem.context + i)
        got = torch.frombuffer(bytearray(collected.outputs["hidden"][i]), dtype=torch.bfloat16)
        if tolerance.routes_clearly(problem.dims, weights, trace):
            own.append(tolerance.tensor_error(exact, got).relative)
            honest.append(tolerance.tensor_error(exact, rough).relative)
        token = got
        if not bool(torch.isfinite(got).all()):
            return f"step {i} of a timed chain has outputs that are not finite", i
    # The first block's state depends on no routing, so it must be right whatever the experts did.
    for name, exact_state in states[0].items():
        if name.startswith("blocks.0.") and steps == len(collected.outputs["hidden"]):
            got_state = to_tensor(collected.tensors[name], case.state[name].dtype, (-1, *case.state[name].shape[1:]))
            rows = slice(0, exact_state.shape[0])
            mine = tolerance.tensor_error(exact_state, got_state[rows]).relative
            allowed = tolerance.RMS_FACTOR * max(
                tolerance.tensor_error(exact_state, states[1][name][rows]).relative, tolerance.FLOORS["bf16"]
            )
            if not mine <= allowed:
                return f"{name} after a timed chain of {steps} steps has a relative error of {mine:.3g}; allowed {allowed:.3g}", len(own)
    if not own:
        return "", 0
    median, worst = tolerance.RMS_FACTOR * statistics.median(honest), 2 * tolerance.RMS_FACTOR * max(honest)
    if statistics.median(own) <= median and max(own) <= worst:
        return "", len(own)
    return (f"{len(own)} steps of a timed chain have relative errors of {statistics.median(own):.3g} (median) and {max(own):.3g} (worst); "
            f"allowed {median:.3g} and {worst:.3g}"), len(own)  # fmt: skip


def read_share(child: ChildProcess, problem: Problem, effort: Effort, rows: int, timeout: float) -> tuple[Interval, dict[int, float]]:
    """Fastest read-only pass over the same pages by the same threads / step, interleaved in one process (child's clock).

    Every read variant is tried; the fastest one is the denominator's rival. Also returns median seconds by variant."""
    token, state = problem.module("definition").make_case(problem.dims, problem.context, secrets.randbits(40))
    child.prepare("read", case_file(_Start(token, state)), {"hidden": 2 * problem.dims.hidden},
                  capacity_pad=cache_pads(problem, state, rows))  # fmt: skip
    child.run_chain("read", steps=1, position=problem.context, timeout=timeout)
    medians, best = {}, None
    for variant in (0, 1, 2):
        reply = child.call("pairs", timeout, slot="read", position=problem.context, repeats=effort.read_pairs, variant=variant)
        with child.reading("pairs"):
            shares = [r / s for s, r in zip(reply["step"], reply["read"], strict=True)]
            medians[variant] = statistics.median(reply["read"]) / 1e9
            if len(shares) != effort.read_pairs or not all(0.0 < share < math.inf for share in shares):
                raise ValueError("a time is missing, or is none")
        if best is None or medians[variant] < best[0]:
            best = (medians[variant], shares)
    assert best is not None
    return interval([best[1]], "read-only pass seconds / step seconds"), medians
