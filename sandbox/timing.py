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
from sandbox.checking import cache_pads, case_file, state_of, step_outputs
from sandbox.child_process import ChainTimes, ChildProcess, Collected
from sandbox.evaluation import Interval
from sandbox.intervals import interval, ratios
from sandbox.problem import Problem

T = TypeVar("T")
SETTLE_S = 0.02  # between two timed chains: the other side's threads go to sleep
SLOPE_GAP = 0.10
CHAIN_S = 0.03  # a long chain of this length is timed to about a percent: a pipe and waking the team cost 0.1 ms
ONCE = "once per chain"
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
    level: float = 0.95  # of the intervals of ratios

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

    level: float = 0.95
    own: list[list[float]] = field(default_factory=list)
    pairs: dict[str, list[list[tuple[float, float]]]] = field(default_factory=dict)
    short: list[tuple[int, float]] = field(default_factory=list)
    long: list[tuple[int, float]] = field(default_factory=list)
    chains: list[tuple[Any, int, Collected, int]] = field(default_factory=list)  # to be verified, each with the number of its process
    dispatches: list[float] = field(default_factory=list)  # per step on the timed path, one count a process, by our runtime
    launches: list[dict[str, float]] = field(default_factory=list)  # per step, by kind or kernel, one count a process, by the profiler
    device: list[list[float]] = field(default_factory=list)  # seconds per step between device events: the slope over two chains, by process
    once: list[float] = field(default_factory=list)  # seconds between device events that a chain costs beside its steps

    def step_interval(self) -> Interval:
        """Seconds per step."""
        return interval(self.own, "seconds per step")

    def speedups(self) -> dict[str, Interval]:
        """Rival seconds over candidate seconds, by rival."""
        return {name: interval(ratios(groups), f"speedup vs {name}", self.level) for name, groups in self.pairs.items()}

    def device_interval(self) -> Interval | None:
        """Seconds per step between device events, as the candidate's process says."""
        return interval(self.device, "seconds per step between device events") if any(self.device) else None

    def slope_gap(self) -> float:
        """How far the slope of wall time over chain length lies above the time we report (the same slope between device events, or the
        mean of a long chain), as a fraction of it.

        What a chain costs once (waking the threads, the pipe) makes the mean larger than the slope: the time we report is
        then too long, never too short. A slope above the mean says that part of a chain's work was not in its time."""
        slopes = []
        for (n1, t1), (n2, t2) in zip(self.short, self.long, strict=True):
            slopes.append((t2 - t1) / (n2 - n1))
        mean = statistics.median([s for group in self.device for s in group] or [t / n for n, t in self.long])
        if mean <= 0:
            return math.inf
        return (statistics.median(slopes) - mean) / mean


def one_chain(child: ChildProcess, problem: Problem, steps: int, rows: int, timeout: float, probe: str = "ordinary",
              profile: bool = False) -> tuple[ChainTimes, Any]:  # fmt: skip
    """One timed chain on a fresh start (drawn as for `probe`), and the start. The inputs are zeros until the clock runs."""
    context = problem.context
    start = problem.interface.start(problem.dims, context, secrets.randbits(40), probe)
    decoy = {name: torch.zeros_like(tensor) for name, tensor in start.inputs.items()}
    child.prepare("timed", case_file(decoy, start.state), problem.output_bytes, capacity_pad=cache_pads(problem, start.state, rows))
    time.sleep(SETTLE_S)
    fresh = {name: tensor.contiguous().view(torch.uint8).numpy().tobytes() for name, tensor in start.inputs.items()}
    times = child.run_chain("timed", steps=steps, position=context, feed=problem.spec.feed, fresh=fresh, profile=profile, timeout=timeout)
    return times, start


def as_ours(act: Callable[[], T]) -> T:
    """A rival's failure is the judge's trouble, never the candidate's status."""
    try:
        return act()
    except (ChildError, CompileFailed, CompileLimit) as error:
        raise BoxError(f"a rival failed, so there is nothing to compare with: {error}") from error


def launches_per_step(short: tuple[int, Mapping[str, int]], long: tuple[int, Mapping[str, int]]) -> dict[str, float]:
    """Launches by kind from the counts of two chains: what grows with the steps, and beside it (`ONCE`) what a chain costs once."""
    (n1, few), (n2, many) = short, long
    kinds = {kind: (many.get(kind, 0) - few.get(kind, 0)) / (n2 - n1) for kind in {*few, *many}}
    once = sum(many.values()) - many.get("graph", 0) - n2 * sum(n for kind, n in kinds.items() if kind != "graph")
    return {kind: n for kind, n in kinds.items() if n} | ({ONCE: once} if round(once, 6) else {})


def measure(problem: Problem, open_candidate: Callable[[], ChildProcess], rivals: Sequence[Rival], effort: Effort, timeout: float,
            rows: int, probes: Sequence[str], on_device: bool = False, say: Callable[[str], None] = lambda text: None) -> Measured:  # fmt: skip
    """Fresh processes, `effort.pairs` interleaved rounds in each; the order of a round alternates. probes: how the starts of each
    process are drawn. on_device: device times and launches are taken too, instead of our runtime's dispatches."""
    out = Measured(level=effort.level, pairs={r.name: [] for r in rivals})
    for number in range(effort.processes):
        say(f"  timing: process pair {number + 1} of {effort.processes}")
        with contextlib.ExitStack() as stack:
            child, others = _open_all(stack, open_candidate, rivals)
            chain = functools.partial(one_chain, child, problem, rows=rows, timeout=timeout, probe=probes[number])
            own: list[float] = []
            device: list[float] = []
            paired: dict[str, list[tuple[float, float]]] = {r.name: [] for r in rivals}
            chain(2)  # first touch of fresh memory is not the step
            if number == 0:
                effort = effort.for_step(chain(4)[0].seconds / 4)
            for _, other in others:
                as_ours(lambda other=other: one_chain(other, problem, 1, rows, timeout))  # type: ignore[misc]
            counts = child.counts_dispatches
            before, steps = child.dispatches(timeout) if counts else 0, 0
            keep = secrets.randbelow(effort.pairs)
            for round_ in range(effort.pairs):
                lengths = (effort.short + secrets.randbelow(effort.spread + 1), effort.long + secrets.randbelow(effort.spread + 1))
                assert problem.context + max(lengths) <= rows
                theirs: dict[str, float] = {}
                mine = 0.0
                turns = [None, *others]
                for turn in turns if round_ % 2 == 0 else reversed(turns):
                    if turn is None:
                        short, _ = chain(lengths[0])
                        long, start = chain(lengths[1])
                        out.short.append((lengths[0], short.seconds))
                        out.long.append((lengths[1], long.seconds))
                        mine = _per_step(lengths, (short, long)) if on_device else long.seconds / lengths[1]
                        if short.device_ns is not None and long.device_ns is not None:
                            per_step = (long.device_ns - short.device_ns) / 1e9 / (lengths[1] - lengths[0])
                            device.append(per_step)
                            out.once.append(long.device_ns / 1e9 - lengths[1] * per_step)
                        steps += sum(lengths)
                        # Collected every time: its hash must be the one the child gave when the clock stopped.
                        collected = child.collect("timed", timeout)
                        if round_ == keep:
                            out.chains.append((start, lengths[1], collected, number))
                    else:
                        rival, other = turn
                        theirs[rival.name] = as_ours(lambda: _rival_seconds(rival, other, problem, lengths, on_device, rows, timeout))  # noqa: B023
                own.append(mine)
                for name, seconds in theirs.items():
                    paired[name].append((mine, seconds))
            out.own.append(own)
            out.device.append(device)
            if counts:
                out.dispatches.append((child.dispatches(timeout) - before) / steps)
            if on_device:
                counted = []
                for length in (effort.short, effort.long):
                    length += secrets.randbelow(min(effort.spread, effort.long - effort.short - 1) + 1)
                    profiled, start = chain(length, profile=True)
                    counted.append((length, profiled.launches or {}))
                    out.chains.append((start, length, child.collect("timed", timeout), number))  # a count of wrong steps counts nothing
                out.launches.append(launches_per_step(*counted))
            for name, group in paired.items():
                out.pairs[name].append(group)
    return out


def _per_step(lengths: tuple[int, int], chains: tuple[ChainTimes, ChainTimes]) -> float:
    """Seconds per step by the parent's clock: what a chain costs once (adopting a state, waking a device) falls out."""
    return max(1e-9, (chains[1].seconds - chains[0].seconds) / (lengths[1] - lengths[0]))


def _rival_seconds(rival: Rival, child: ChildProcess, problem: Problem, lengths: tuple[int, int], on_device: bool, rows: int,
                   timeout: float) -> float:  # fmt: skip
    """Seconds per step of a rival, taken as the candidate's are."""
    if on_device:
        short, long = (one_chain(child, problem, n, rows, timeout)[0] for n in lengths)
        return _per_step(lengths, (short, long))
    length = rival.steps or lengths[1]
    return one_chain(child, problem, length, rows, timeout)[0].seconds / length


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


def verify_chain(problem: Problem, weights: Mapping[str, torch.Tensor], start: Any, steps: int, collected: Collected) -> tuple[str, int]:
    """Compare the first `steps` outputs of a timed chain with the truth: (what is wrong or "", steps that could be compared).

    The problem's own rule (`interface.verify_chain`): truth and the bf16 baseline walk along the candidate's own outputs, so an error
    does not grow from step to step by itself. The state is compared where the chain is, to its end."""
    outputs = [step_outputs(problem, collected, i) for i in range(steps)]
    whole = steps == len(next(iter(collected.outputs.values())))
    state = state_of(start.state, collected) if whole else None
    found: tuple[str, int] = problem.interface.verify_chain(problem.dims, weights, start, problem.context, outputs, state)
    return found


def read_share(child: ChildProcess, problem: Problem, effort: Effort, rows: int, timeout: float) -> tuple[Interval, dict[int, float]]:
    """Fastest read-only pass over the same pages by the same threads / step, interleaved in one process (child's clock).

    Every read variant is tried; the fastest one is the denominator's rival. Also returns median seconds by variant."""
    start = problem.interface.start(problem.dims, problem.context, secrets.randbits(40), "ordinary")
    child.prepare("read", case_file(start.inputs, start.state), problem.output_bytes, capacity_pad=cache_pads(problem, start.state, rows))
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
