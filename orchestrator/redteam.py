"""The red team: every known way to fool a judge as a small hostile candidate, and honest twins that must pass.

The candidates lie in tests/cheats of a checkout, with a catalogue that says of each what must catch it. A judge is believed only
if none of the hostile ones gets a time that it has not earned and all of the honest ones get theirs.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from agents.merger import merge, pick
from agents.planner import load_plan
from agents.skills import load_implementations
from sandbox.candidate import Candidate
from sandbox.checking import CheckPlan
from sandbox.errors import KernelbraidError, RecordError
from sandbox.evaluation import Evaluation, Standing, Status
from sandbox.judge import Judge, JudgeLimits
from sandbox.problem import Problem
from sandbox.records import Frozen
from sandbox.stage_alone import stage_candidate
from sandbox.timing import Effort

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "cheats"
KERNEL, ABI = "//@honest kernel", "//@minimal abi"  # lines of a C++ cheat that stand for other sources
NO_GAIN, QUARANTINED = "no gain", "quarantined"  # endings beside the statuses
NO_CLAIM = "no claim"  # it passes, but what it lies about is recorded as its own word, and nothing may rest on it
TWINS = {"cpp": "cpp/honest_kernel.cpp", "python": "python/honest_plain.py"}
GPU_TWIN = "gpu/honest_torch.py"


class Cheat(Frozen):
    """One candidate of the red team.

    `caught` names the endings that count as caught: statuses of an Evaluation; "quarantined"; "no gain": it passes, and is at most
    `most_gain` times as fast as its honest twin; "no claim": it passes, and the record says that the number it forged is the
    candidate's own word (a stage's times, never more than provisional; a count of dispatches by the runtime). For an honest twin it is empty: it must pass. `fools_naive`: the naive harness
    beside the catalogue accepts it.
    """

    kind: str  # of the catalogue of reward hacks, such as H06; "twin" for honest ones, "own" for our own additions
    name: str
    file: str  # below tests/cheats
    defence: str  # what catches it
    language: Literal["cpp", "python"]
    problem: str = "gated_mlp"
    size: str = "tiny"
    node: str = ""  # of a stage candidate
    caught: tuple[str, ...] = ()
    most_gain: float = 1.25
    twin: str = ""  # below tests/cheats: what the gain is over, if not the honest solution
    honest: bool = False
    gpu: bool = False
    fools_naive: bool = False
    beside: tuple[str, ...] = ()  # files below tests/cheats that travel with it, under their own names
    plain: bool = False  # the problem's own baseline travels with it, as a package of that name
    flags: tuple[str, ...] = ()
    probes: bool = False  # judged under probe weights too, where nothing else shows it
    processes: int = Field(default=2, ge=1)  # fresh process pairs when timed
    memory_bytes: int = 4 << 30

    @model_validator(mode="after")
    def _check(self) -> Cheat:
        known = {*(s.value for s in Status), NO_GAIN, NO_CLAIM, QUARANTINED} - {Status.PASSED.value}
        if self.honest == bool(self.caught):
            raise RecordError(f"cheat '{self.name}': a hostile one names what counts as caught, an honest twin names nothing")
        if not set(self.caught) <= known:
            raise RecordError(f"cheat '{self.name}' counts {sorted(set(self.caught) - known)} as caught; known are {sorted(known)}")
        return self

    @property
    def target(self) -> Literal["cpu", "cuda"]:
        """What it runs on."""
        return "cuda" if self.gpu else "cpu"


@dataclass(frozen=True)
class Verdict:
    """What the judge made of a cheat. `good`: a hostile one was caught, an honest one passed."""

    cheat: Cheat
    status: str  # of the Evaluation, with its standing if that is what caught it
    good: bool
    why: str  # first line of the log, or the gain
    seconds: float


def load_catalogue(folder: Path = FOLDER) -> tuple[Cheat, ...]:
    """All cheats and twins. Raises KernelbraidError where there is no checkout."""
    path = folder / "catalogue.py"
    if not path.is_file():
        raise KernelbraidError(f"the red team needs a checkout: there is no {path}; clone the repository and run it there")
    spec = importlib.util.spec_from_file_location("kernelbraid_cheats", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: tuple[Cheat, ...] = module.CHEATS
    return found


@functools.cache
def honest_kernel(problem: str, size: str, node: str) -> str:
    """Source of the kernel for one thread that C++ cheats wrap: the whole step, or one stage alone."""
    loaded = Problem.load(problem, size)
    choice = pick(loaded.graph, load_implementations(), "cpu")
    if node:
        sharding = next(name for name in loaded.graph.by_name[node].shardings if choice[node].accepts(name))
        return stage_candidate(loaded.graph, node, sharding, choice[node], 1).source
    return merge(loaded.graph, load_plan(loaded.plan_file("fused"), loaded.graph, 1), choice).source


def candidate_of(cheat: Cheat, folder: Path = FOLDER) -> Candidate:
    """The candidate as the judge gets it."""
    source = (folder / cheat.file).read_text()
    if cheat.language == "cpp":
        if KERNEL in source:
            source = source.replace(KERNEL, honest_kernel(cheat.problem, cheat.size, cheat.node))
        if ABI in source:
            source = source.replace(ABI, (folder / "support" / "minimal_abi.hpp").read_text())
        return Candidate(role="stage" if cheat.node else "solution", target="cpu", source=source, node=cheat.node, threads=1,
                         flags=("-O1", *cheat.flags), name=cheat.name, author="red team")  # fmt: skip
    files = {Path(name).name: (folder / name).read_text() for name in cheat.beside}
    if cheat.plain:
        package = Problem.load(cheat.problem, cheat.size).folder
        files |= {f"plain/{name}": (package / name).read_text() for name in ("__init__.py", "definition.py", "quant.py", "baseline.py")}
    return Candidate(role="solution", target=cheat.target, language="python", source=source, files=files, name=cheat.name,
                     author="red team")  # fmt: skip


def twin_of(cheat: Cheat, folder: Path = FOLDER) -> Candidate:
    """The honest candidate that a cheat's gain is measured over."""
    file = cheat.twin or (GPU_TWIN if cheat.gpu else TWINS[cheat.language])
    beside = tuple(name for name in cheat.beside if Path(name).name.startswith("honest"))
    return candidate_of(cheat.model_copy(update={"file": file, "flags": (), "beside": beside, "name": "honest"}), folder)


def limits_of(cheat: Cheat) -> JudgeLimits:
    """Small limits: a cheat that is caught by its values shows in a few cases, one that hangs shall not hold us up."""
    torch = cheat.language == "python"
    return JudgeLimits(
        wall_s=40, step_s=10 if torch else 4, memory_bytes=cheat.memory_bytes, processes=256 if cheat.gpu else 64,
        checks=CheckPlan(seeds=2, probe_seeds=1, probes=cheat.probes, short_context=False),
        effort=Effort(processes=cheat.processes, pairs=2, read_pairs=2), stage_repeats=5,
    )  # fmt: skip


def judged(cheat: Cheat, judge: Judge, folder: Path = FOLDER) -> Verdict:
    """Judge one, and hold what came out against what the catalogue says."""
    started = time.monotonic()
    incumbents = {"honest": twin_of(cheat, folder)} if NO_GAIN in cheat.caught else {}
    problem = Problem.load(cheat.problem, cheat.size)
    evaluation = judge.evaluate(candidate_of(cheat, folder), problem, limits_of(cheat), incumbents=incumbents)
    status, good, why = settle(cheat, evaluation)
    return Verdict(cheat, status, good, why, time.monotonic() - started)


def settle(cheat: Cheat, evaluation: Evaluation) -> tuple[str, bool, str]:
    """(status, whether that is as it should be, why)."""
    status, why = evaluation.status.value, next((line.strip() for line in evaluation.log.splitlines() if line.strip()), "")
    if cheat.honest:
        return status, evaluation.status is Status.PASSED, why
    if evaluation.status is not Status.PASSED:
        return status, status in cheat.caught, why
    if evaluation.standing is Standing.QUARANTINED and QUARANTINED in cheat.caught:
        return QUARANTINED, True, why
    if NO_CLAIM in cheat.caught and own_word(evaluation):
        return NO_CLAIM, True, "passed; what it forged is recorded as its own word"
    gain = evaluation.times.vs.get("honest") if evaluation.times is not None else None
    if gain is None or NO_GAIN not in cheat.caught:
        return status, False, why or "no fault was found"
    return status, gain.median <= cheat.most_gain, f"{gain.median:.2f} times as fast as its honest twin ({cheat.most_gain:.2f} allowed)"


def own_word(evaluation: Evaluation) -> bool:
    """Whether the record claims nothing that only the candidate says: a stage stays provisional, a count names its evidence."""
    if evaluation.role == "stage":
        return evaluation.standing is Standing.PROVISIONAL and evaluation.times is not None and "estimate" in evaluation.times.clock
    return evaluation.dispatch_evidence != "profiler"


def judge_all(cheats: Sequence[Cheat], make_judge: Callable[[], Judge], jobs: int, folder: Path = FOLDER) -> Iterator[Verdict]:
    """Judge them, `jobs` at a time, each job with a judge of its own; verdicts as they come."""
    own = threading.local()

    def one(cheat: Cheat) -> Verdict:
        if not hasattr(own, "judge"):
            own.judge = make_judge()
        return judged(cheat, own.judge, folder)

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(one, cheat) for cheat in cheats]):
            yield done.result()
