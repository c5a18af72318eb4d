"""The verb `problems`: what there is to be solved, and whether a problem can be judged at all."""

from __future__ import annotations

import json
import secrets
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli_errors import plain_errors

app = typer.Typer(
    rich_markup_mode=None,
    invoke_without_command=True,
    help="List the problems of this checkout with their sizes; check that one can be judged.\n\n"
    "Examples:\n\n  kernelbraid problems\n\n  kernelbraid problems check gated_mlp --size tiny",
)


@app.callback()
def problems(context: typer.Context) -> None:
    """List the problems, unless a command follows."""
    if context.invoked_subcommand is None:
        list_problems()


@app.command("list")
def list_problems() -> None:
    """List the problems with their sizes."""
    from sandbox.problem import PROBLEMS, Problem

    for path in sorted(PROBLEMS.glob("*/problem.yaml")):
        spec = Problem(path.parent.name, "", path.parent).spec
        sys.stdout.write(f"{spec.name}: {spec.title}\n")
        for size, about in spec.sizes.items():
            sys.stdout.write(f"  {size:10} {about}\n")
        sys.stdout.write(
            f"  contract   {spec.contract}\n  baselines  {', '.join(spec.baselines)}\n  plans      {', '.join(spec.plans) or 'none'}\n"
        )


@app.command()
def check(
    problem: Annotated[str, typer.Argument(help="Problem folder under experiments/problems, or a path.")],
    size: Annotated[str, typer.Option(help="One of its sizes.")] = "tiny",
    as_json: Annotated[bool, typer.Option("--json", help="The last line of stdout is JSON.")] = False,
) -> None:
    """Whether a problem can be judged: constants, zeros, the identity and junk must fail it, and every input and weight must matter.

    Everything is drawn from a fresh secret seed. Exit 1 if a demand does not hold.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with plain_errors(console):
        from sandbox.problem import Problem

        chosen = Problem.load(problem, size)
        weights = chosen.module("definition").make_weights(chosen.dims, secrets.randbits(62))
        found = chosen.module("admission").admit(chosen.dims, weights, secrets.randbits(40))
    table = Table(title=f"{chosen.name}/{size}: {len(found)} demands", title_justify="left")
    for column in ("demand", "holds", "seen at"):
        table.add_column(column)
    for r in found:
        table.add_row(r.name, "yes" if r.holds else "NO", r.seen_at, style=None if r.holds else "red")
    console.print(table)
    held = sum(r.holds for r in found)
    console.print(f"{held} of {len(found)} demands hold")
    if as_json:
        sys.stdout.write(json.dumps({"demands": len(found), "held": held, "missing": [r.name for r in found if not r.holds]}) + "\n")
    raise typer.Exit(0 if held == len(found) else 1)
