"""The verb `redteam`: attack the judge of this machine with every known cheat. stdout is data, stderr is talk."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.cli_errors import clean, plain_errors
from sandbox.errors import UnavailableError

if TYPE_CHECKING:
    from orchestrator.redteam import Verdict
    from sandbox.judge import Judge

WIDTH = 150  # characters, where nobody's terminal says otherwise


def redteam(
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind (H06, own, twin) or this name; may be repeated.")] = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Those for a GPU, on the first GPU that nvidia-smi lists, instead of the others.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Judged at a time; what is timed waits for the CPUs anyway.")] = 1,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of every candidate in Python; 0: at most two.")] = 0,
    cache: Annotated[Path | None, typer.Option(help="Weights and compiled kernels. Default: the user's cache folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The last line of stdout is JSON.")] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Run hostile code even where nothing can contain it.")] = False,
) -> None:
    """Attack the judge with every known cheat. Exit 0 only if each hostile one is caught and each honest twin passes.

    Examples:

      kernelbraid redteam

      kernelbraid redteam --kind H06 --kind twin --json
    """
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else WIDTH)
    with plain_errors(console):
        from orchestrator.redteam import judge_all, load_catalogue

        cheats = [c for c in load_catalogue() if c.gpu == gpu and (not kind or c.kind in kind or c.name in kind)]
        if not cheats:
            raise typer.BadParameter(f"there is no cheat of kind or name {kind}" + (" for a GPU" if gpu else ""))
        verdicts: list[Verdict] = []
        for verdict in judge_all(cheats, lambda: _judge(cache, gpu, threads, unsafe), jobs):
            verdicts.append(verdict)
            console.print(f"{len(verdicts)}/{len(cheats)}  {verdict.cheat.name}: {verdict.status}{'' if verdict.good else '  NO'}")
    order = {cheat.name: number for number, cheat in enumerate(cheats)}
    verdicts.sort(key=lambda v: order[v.cheat.name])
    console.print(_table(verdicts))
    summary = summarise(verdicts)
    console.print("{caught} of {cheats} cheats caught, {honest_passed} of {honest} honest twins passed".format(**summary))
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    raise typer.Exit(0 if all(v.good for v in verdicts) else 1)


def summarise(verdicts: list[Verdict]) -> dict[str, int]:
    """How many were judged, and of how many the judge made what it should."""
    hostile, honest = [v for v in verdicts if not v.cheat.honest], [v for v in verdicts if v.cheat.honest]
    return {
        "cheats": len(hostile),
        "caught": sum(v.good for v in hostile),
        "honest": len(honest),
        "honest_passed": sum(v.good for v in honest),
    }


def _judge(cache: Path | None, gpu: bool, threads: int, unsafe: bool) -> Judge:
    import platformdirs

    from sandbox.judge import Judge

    folder = (cache or platformdirs.user_cache_path("kernelbraid")).resolve()
    if gpu:
        from sandbox.device import devices

        found = devices()
        if not found:
            raise UnavailableError("nvidia-smi lists no GPU, so the cheats for a GPU cannot be judged here")
        return Judge(folder, unsafe=unsafe, threads=threads or None, device=found[0])
    return Judge(folder, unsafe=unsafe, threads=threads or _two())


def _two() -> int:
    from sandbox.environment import usable_cpus

    return min(2, len(usable_cpus()))


def _table(verdicts: list[Verdict]) -> Table:
    table = Table()
    for column in ("kind", "name", "verdict", "caught", "defence", "seconds"):
        table.add_column(column, no_wrap=column != "defence", justify="right" if column == "seconds" else "left")
    for v in verdicts:
        answer = ("honest" if v.good else "NO: an honest one") if v.cheat.honest else ("yes" if v.good else "NO")
        said = clean(v.why)[:160] or v.cheat.defence
        table.add_row(v.cheat.kind, v.cheat.name, v.status, answer, escape(said), f"{v.seconds:.1f}", style=None if v.good else "bold red")
    return table
