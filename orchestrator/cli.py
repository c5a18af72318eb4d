"""The command line. stdout is data, stderr is talk; exit 0 only if the thing asked for holds."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import platformdirs
import typer
from rich.console import Console

from orchestrator.logging_setup import set_up
from sandbox.errors import KernelbraidError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Braids separately proven stages into one kernel per decode step; a judge re-measures everything.\n\n"
    "Examples:\n\n  kernelbraid run\n\n  kernelbraid run --size full --json\n\n  kernelbraid problems",
)

ProblemName = Annotated[str, typer.Option(help="Problem folder under experiments/problems, or a path.")]
Size = Annotated[str, typer.Option(help="One of the problem's sizes.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of the kernel and of every baseline; 0: all CPUs this process may use.")]
RunsFolder = Annotated[Path | None, typer.Option(help="Where run folders are made. Default: the user's data folder.")]
CacheFolder = Annotated[Path | None, typer.Option(help="Weights and compiled libraries. Default: the user's cache folder.")]
Json = Annotated[bool, typer.Option("--json", help="The last line of stdout is JSON.")]
Unsafe = Annotated[bool, typer.Option("--unsafe", help="Judge even where nothing can contain a candidate.")]


@app.callback()
def _app() -> None:
    """Typer needs a callback to keep `run` a verb of its own while there are few verbs."""


@app.command()
def run(
    problem: ProblemName = "kimi_linear_decode",
    size: Size = "small",
    threads: Threads = 0,
    processes: Annotated[int, typer.Option(min=1, help="Fresh process pairs that every ratio rests on; below 5 nothing is admitted.")] = 5,
    pairs: Annotated[int, typer.Option(min=1, help="Interleaved pairs in each process pair.")] = 6,
    seeds: Annotated[int, typer.Option(min=1, help="Fresh cases under ordinary weights.")] = 3,
    rivals: Annotated[str, typer.Option(help="Baselines to time against, separated by commas.")] = "baseline,torch_best",
    stages: Annotated[bool, typer.Option(help="Judge every stage alone first (gives the predictions).")] = True,
    runs: RunsFolder = None,
    cache: CacheFolder = None,
    as_json: Json = False,
    unsafe: Unsafe = False,
    verbose: Annotated[bool, typer.Option(help="Log every event.")] = False,
) -> None:
    """Judge the stages, assemble the unfused and the fused plan, judge both, print a table and where the files are.

    Examples:

      kernelbraid run

      kernelbraid run --size tiny --processes 1 --json
    """
    from orchestrator.job import Job, JobSettings, describe_effort
    from orchestrator.run_folder import RunFolder
    from orchestrator.tables import show
    from sandbox.checking import CheckPlan
    from sandbox.judge import Judge
    from sandbox.timing import Effort

    set_up(verbose)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    settings = JobSettings(
        problem=problem, size=size, rivals=tuple(r for r in rivals.split(",") if r), stages=stages,
        checks=CheckPlan(seeds=seeds), effort=Effort(processes=processes, pairs=pairs),
    )  # fmt: skip
    with _plain_errors(console):
        settings.check()
        judge = Judge(cache or platformdirs.user_cache_path("kernelbraid"), unsafe=unsafe, threads=threads or None,
                      progress=lambda text: console.print(text, style="dim"))  # fmt: skip
        folder = RunFolder.new(runs or platformdirs.user_data_path("kernelbraid") / "runs", f"{Path(problem).name}-{size}")
        console.print(f"kernelbraid: {problem}/{size} on {judge.threads} threads of {judge.environment.cpu}")
        console.print(f"measuring {describe_effort(settings.effort)}; box: {judge.walls.level}")
        for name, why in judge.walls.missing:
            console.print(f"  wall missing: {name} ({why})")
        load = os.getloadavg()[0]
        if load > 0.5 * judge.threads:
            console.print(
                f"this machine is busy (load {load:.1f} on {judge.threads} CPUs): times will be noisy and may be quarantined",
                style="yellow",
            )
        console.print(f"results go to {folder.path}")
        folder.write_json("environment.json", judge.environment.model_dump(mode="json"))
        resolved = json.loads(json.dumps(settings, default=vars))
        folder.write_json("settings.json", resolved | {"threads": judge.threads, "cache": str(judge.cache), "command": sys.argv})
        try:
            outcome = Job(settings, judge, folder, memory_file(runs), console.print).run()
        except KeyboardInterrupt:
            folder.event("run.interrupted")
            console.print(f"interrupted; what was judged so far is in {folder.path}")
            raise typer.Exit(130) from None
        show(outcome, console)
    if as_json:
        sys.stdout.write(json.dumps(outcome.summary) + "\n")
    raise typer.Exit(0 if outcome.summary["status"] == "passed" else 1)


@app.command()
def problems() -> None:
    """List the problems of this checkout with their sizes."""
    from sandbox.problem import PROBLEMS, Problem

    for path in sorted(PROBLEMS.glob("*/problem.yaml")):
        spec = Problem(path.parent.name, "", path.parent).spec
        sys.stdout.write(f"{spec.name}: {spec.title}\n")
        for size, about in spec.sizes.items():
            sys.stdout.write(f"  {size:10} {about}\n")
        sys.stdout.write(f"  baselines  {', '.join(spec.baselines)}\n  plans      {', '.join(spec.plans)}\n")


@app.command()
def memory(runs: RunsFolder = None, as_json: Json = False) -> None:
    """List the tricks that were proven, newest last, with the evaluations that prove them."""
    from memory.trick import load

    path = memory_file(runs)
    tricks = load(path)
    for trick in tricks:
        r = trick.ratio
        sys.stdout.write(f"{trick.at}  {trick.problem}/{trick.size} {trick.target}: {trick.claim}\n")
        sys.stdout.write(
            f"  {r.median:.3f}x (95 % {r.low:.3f} to {r.high:.3f}, {r.processes} process pairs)  candidate {trick.candidate[:16]}"
        )
        sys.stdout.write(f"  evaluations {' '.join(e[:16] for e in trick.evaluations)}\n")
    if not tricks:
        Console(stderr=True).print(f"no tricks yet in {path}", soft_wrap=True)
    if as_json:
        sys.stdout.write(json.dumps([t.model_dump(mode="json") for t in tricks]) + "\n")


def memory_file(runs: Path | None) -> Path:
    """Where tricks are kept: beside the run folders."""
    return (runs or platformdirs.user_data_path("kernelbraid")) / "memory" / "tricks.jsonl"


class _plain_errors:  # noqa: N801
    """A user's mistake or a missing part of the machine is one sentence on stderr, not a traceback."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            error = KernelbraidError(f"{error}; choose other folders with --runs and --cache")
        if isinstance(error, KernelbraidError):
            self.console.print(f"error: {error}", style="red", markup=False)
            raise typer.Exit(2) from None


def run_main() -> None:
    """`orchestrator/main.py`: the options of `kernelbraid run`."""
    app(["run", *sys.argv[1:]])
