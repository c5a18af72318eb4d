"""The command line. stdout is data, stderr is talk; exit 0 only if the thing asked for holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator import cli_judge, cli_memory, cli_problems, cli_skills
from orchestrator.cli_errors import plain_errors
from orchestrator.cli_evaluate import evaluate
from orchestrator.cli_redteam import redteam
from sandbox.errors import KernelbraidError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="A team of specialists searches for faster stages and plans of one decode step; a merger braids them into one kernel; a judge "
    "re-measures everything.\n\nExamples:\n\n  kernelbraid run\n\n  kernelbraid run --size tiny --engine local --minutes 2 --new\n\n"
    "  kernelbraid memory list\n\n  kernelbraid doctor",
)
app.add_typer(cli_memory.app, name="memory")
app.add_typer(cli_skills.app, name="skills")
app.add_typer(cli_problems.app, name="problems")
app.add_typer(cli_judge.app, name="judge")
app.command()(evaluate)
app.command()(redteam)
FOLDERS = "choose other folders with --runs and --cache"

RunsFolder = Annotated[Path | None, typer.Option(help="Where run folders are made. Default: the user's data folder.")]
CacheFolder = Annotated[Path | None, typer.Option(help="Weights and compiled libraries. Default: the user's cache folder.")]
Json = Annotated[bool, typer.Option("--json", help="The last line of stdout is JSON.")]
Unsafe = Annotated[bool, typer.Option("--unsafe", help="Judge even where nothing can contain a candidate.")]


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [w.strip() for w in text.split(",") if w.strip()]


@app.command()
def run(
    campaign: Annotated[Path | None, typer.Option(help="A campaign file (YAML) with settings; options override it.")] = None,
    problem: Annotated[str | None, typer.Option(help="Problem folder under experiments/problems, or a path.")] = None,
    size: Annotated[str | None, typer.Option(help="One of the problem's sizes. Default: small.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=0, help="Threads of every candidate and baseline; 0: all CPUs of this process.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="ray: every worker an actor. local: all in this process, without Ray.")] = None,
    minutes: Annotated[float | None, typer.Option(help="For the whole campaign, the final verification included. Default: 4.75.")] = None,
    candidates: Annotated[int | None, typer.Option(min=1, help="Evaluations at most.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the search; the judge's seeds are secret.")] = None,
    specialists: Annotated[str | None, typer.Option(help="Who takes part, separated by commas. Default: all roles.")] = None,
    script: Annotated[Path | None, typer.Option(help="Replay proposals from this file instead of tuning.")] = None,
    skills: Annotated[list[Path] | None, typer.Option(help="A further folder of skills, or one skill; may be repeated.")] = None,
    opponents: Annotated[str | None, typer.Option(help="Hand-written plans to pair the result with, by commas; '' for none.")] = None,
    rivals: Annotated[str | None, typer.Option(help="Baselines to pair the result with, by commas; '' for none.")] = None,
    plans: Annotated[int | None, typer.Option(min=0, help="Rewritten plans judged per round.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Fresh process pairs of an admission; below 5 nothing is admitted.")] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="Interleaved pairs in each process pair.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Fresh cases under ordinary weights.")] = None,
    remember: Annotated[bool | None, typer.Option("--memory/--no-memory", help="Begin with what memory holds, and admit to it.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Begin a new campaign although one is unfinished.")] = False,
    runs: RunsFolder = None,
    cache: CacheFolder = None,
    as_json: Json = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, also on a terminal.")] = False,
    unsafe: Unsafe = False,
    verbose: Annotated[bool, typer.Option(help="Log every event.")] = False,
) -> None:
    """Search for a faster megakernel, and end with one that the judge has verified. Goes on with the newest unfinished run folder.

    Examples:

      kernelbraid run

      kernelbraid run --size tiny --minutes 1.5 --engine local --new

      kernelbraid run --campaign experiments/campaigns/overnight.yaml
    """
    from orchestrator.logging_setup import set_up
    from orchestrator.start import Wish, run_campaign
    from orchestrator.tables import show

    set_up(verbose)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    options = {
        "problem": problem, "size": size, "threads": threads, "engine": engine, "minutes": minutes, "candidates": candidates, "seed": seed,
        "specialists": _words(specialists), "script": str(script.resolve()) if script else None,
        "skills": [str(s.resolve()) for s in skills] if skills else None, "opponents": _words(opponents), "rivals": _words(rivals),
        "plans": plans, "processes": processes, "pairs": pairs, "seeds": seeds, "memory": remember,
    }  # fmt: skip
    wish = Wish(options=options, campaign=campaign, new=new, runs=runs, cache=cache, unsafe=unsafe, verbose=verbose, plain=plain)
    with plain_errors(console, FOLDERS):
        try:
            summary, final, report = run_campaign(wish, console)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if final is not None:
            show(summary, final, str(report), console)
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    raise typer.Exit(0 if summary["passed"] else 1)


@app.command()
def report(
    folder: Annotated[Path | None, typer.Argument(help="A run folder. Default: the newest.")] = None,
    runs: RunsFolder = None,
) -> None:
    """Write report.html of a run folder, finished or not, and print its path."""
    from orchestrator.report import write_report
    from orchestrator.start import runs_folder

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with plain_errors(console, FOLDERS):
        if folder is None:
            found = sorted(p.parent for p in runs_folder(runs).glob("*/settings.json"))
            if not found:
                raise KernelbraidError(f"no run folder in {runs_folder(runs)}; `kernelbraid run` makes one")
            folder = found[-1]
        if not (folder / "settings.json").exists():
            raise KernelbraidError(f"{folder} is no run folder: it has no settings.json")
        sys.stdout.write(f"{write_report(folder.resolve())}\n")


@app.command()
def doctor(
    measure: Annotated[bool, typer.Option("--measure", help="Measure the read rate of memory, too.")] = False,
    runs: RunsFolder = None,
    cache: CacheFolder = None,
    as_json: Json = False,
    unsafe: Unsafe = False,
) -> None:
    """Say what this machine has, what it lacks, and what to do about it. Exit 1 if something needed is missing."""
    from orchestrator.doctor import examine, exit_status, show_findings

    console = Console(stderr=True, highlight=False)
    with plain_errors(console, FOLDERS):
        findings = examine(runs=runs, cache=cache, unsafe=unsafe, measure=measure)
        show_findings(findings, console)
    if as_json:
        sys.stdout.write(json.dumps([vars(f) if hasattr(f, "__dict__") else f for f in findings], default=str) + "\n")
    raise typer.Exit(exit_status(findings))


def run_main() -> None:
    """`orchestrator/main.py`: the options of `kernelbraid run`."""
    app(["run", *sys.argv[1:]])
