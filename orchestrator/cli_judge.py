"""The verbs `judge serve` and `judge submit`: the judge behind a socket, for agents that must not touch it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.cli_errors import clean, plain_errors
from sandbox.errors import KernelbraidError
from sandbox.separation import SOCKET_VARIABLE

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="The judge behind a Unix socket: agents submit kernels as bytes and touch neither records nor weights.\n\nExamples:\n\n"
    "  kernelbraid judge serve --problem kimi_linear_decode --size tiny --socket /run/judge/socket --store records --agent-uid 1500\n\n"
    "  kernelbraid judge submit kernel.cpp --socket /run/judge/socket",
)
Socket = Annotated[Path, typer.Option(help="The judge's socket.", envvar=SOCKET_VARIABLE)]


@app.command()
def serve(
    socket: Socket,
    store: Annotated[Path, typer.Option(help="Folder of the records (evaluations.jsonl, hash-chained); made if absent.")],
    problem: Annotated[str, typer.Option(help="Problem folder under experiments/problems, or a path.")] = "kimi_linear_decode",
    size: Annotated[list[str] | None, typer.Option(help="A size that is judged; may be repeated. Default: small.")] = None,
    agent_uid: Annotated[list[int] | None, typer.Option(min=1, help="A uid beside your own that may submit; may be repeated.")] = None,
    rivals: Annotated[str, typer.Option(help="Baselines of the problem to pair each with, by commas.")] = "",
    processes: Annotated[int, typer.Option(min=1, help="Fresh process pairs; below 5 nothing is confirmed.")] = 5,
    pairs: Annotated[int, typer.Option(min=1, help="Interleaved pairs in each process pair.")] = 6,
    seeds: Annotated[int, typer.Option(min=1, help="Fresh cases under ordinary weights; two thirds as many under each probe.")] = 3,
    check: Annotated[bool, typer.Option("--check", help="Check only, take no times.")] = False,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all CPUs of this process.")] = 0,
    cache: Annotated[Path | None, typer.Option(help="Weights and compiled kernels. Default: the user's cache folder.")] = None,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Judge even where nothing can contain a candidate.")] = False,
) -> None:
    """Judge what comes over the socket, one candidate at a time, until Ctrl-C or SIGTERM (exit 130).

    Run it as a user that owns store, cache and the socket's folder, and agents under other uids: every answer says whether they are
    apart, and if not why.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(clean(text), markup=False)

    with plain_errors(console, "name other places with --socket, --store and --cache"):
        import platformdirs

        from sandbox.checking import CheckPlan
        from sandbox.judge import Judge, JudgeLimits
        from sandbox.judge_server import JudgeServer, Offer
        from sandbox.problem import Problem
        from sandbox.timing import Effort

        problems = [Problem.load(problem, name) for name in size or ["small"]]
        asked = tuple(w.strip() for w in rivals.split(",") if w.strip())
        known = problems[0].spec.baselines
        if unknown := sorted(set(asked) - set(known)):
            raise KernelbraidError(f"problem '{problems[0].name}' has no baseline {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        plan = CheckPlan(seeds=seeds, probe_seeds=max(1, 2 * seeds // 3))
        limits = JudgeLimits(checks=plan, effort=Effort(processes=processes, pairs=pairs), timed=not check, rivals=asked)
        judge = Judge(
            (cache or platformdirs.user_cache_path("kernelbraid")).resolve(), threads=threads or None, unsafe=unsafe, progress=say
        )
        with _terminated_as_interrupted():
            try:
                with JudgeServer(judge, Offer(problems), store, socket, limits, agents=agent_uid or (), say=say) as server:
                    for each in problems:
                        judge.weights(each)  # drawn now, so that the first submission does not wait for it
                    say(
                        f"the judge of {problem} ({', '.join(p.size for p in problems)}) listens at {server.path}; records go to {server.store}"
                    )
                    server.serve()
            except KeyboardInterrupt:
                say("the judge ended; what was not judged must be submitted again")
                raise typer.Exit(130) from None


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM (a service manager) ends the judge as Ctrl-C does: boxes are ended and records are whole."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # tidying up is short
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command()
def submit(
    kernel: Annotated[Path, typer.Argument(help="A C++ source with the step ABI, a solution.py, or a folder with one.")],
    socket: Socket,
    problem: Annotated[str, typer.Option(help="Default: the only one that the judge has.")] = "",
    size: Annotated[str, typer.Option(help="Default: the only one that the judge has.")] = "",
    agent: Annotated[str, typer.Option(help="A name for the judge's log.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The last line of stdout is JSON.")] = False,
) -> None:
    """Send a kernel to the judge, wait, and show what it made of it. Exit 0 if it passed, 1 if not, 2 if it was not judged."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with plain_errors(console, "name a kernel that can be read"):
        from orchestrator.cli_evaluate import candidate_of, show
        from sandbox.evaluation import Status
        from sandbox.judge_client import JudgeClient

        candidate = candidate_of(kernel, "cpu")
        client = JudgeClient(socket, agent)
        pong = client.ping()
        offers = [o for o in pong.offers if (not problem or o[0] == problem) and (not size or o[1] == size)]
        if len(offers) != 1:
            have = ", ".join("/".join(o) for o in pong.offers)
            raise KernelbraidError(f"the judge has {have}: name one of them with --problem and --size")
        why = f": {pong.separation.reason}" if pong.separation.reason else ""
        console.print(clean(f"judge and agent are {pong.separation.kind}{why}"), markup=False)
        try:
            judged = client.submit_and_hear(
                candidate, *offers[0], lambda w: console.print(f"submission {w.submission}; {w.ahead} before it", markup=False)
            )
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        show(judged.evaluation, None, console)
    if as_json:
        sys.stdout.write(json.dumps(judged.model_dump(mode="json")) + "\n")
    raise typer.Exit(0 if judged.evaluation.status is Status.PASSED else 1)
