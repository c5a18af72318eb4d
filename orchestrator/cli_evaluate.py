"""The verb `evaluate`: anybody's kernel through the judge, without a campaign."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from sandbox.errors import KernelbraidError, UnavailableError

if TYPE_CHECKING:
    from sandbox.candidate import Candidate
    from sandbox.evaluation import Evaluation
    from sandbox.judge import Judge
    from sandbox.observation import Observation

MAX_FILES, MAX_BYTES = 64, 4 << 20
Target = Literal["cpu", "cuda"]


def candidate_of(path: Path, target: Target) -> Candidate:
    """A whole solution from a file (solution.py, or C++ with the step ABI) or from a folder with a solution.py. Raises KernelbraidError."""
    from sandbox.candidate import Candidate
    from sandbox.torch_process import SOLUTION

    files: dict[str, str] = {}
    main = path
    if path.is_dir():
        main = path / SOLUTION
        beside = [p for p in sorted(path.rglob("*")) if p.is_file() and p != main and "__pycache__" not in p.parts]
        if len(beside) > MAX_FILES or sum(p.stat().st_size for p in beside) > MAX_BYTES:
            raise KernelbraidError(
                f"{path} holds more than {MAX_FILES} files or {MAX_BYTES >> 20} MB beside {SOLUTION}: leave only its sources"
            )
        for p in beside:
            with contextlib.suppress(UnicodeDecodeError):
                files[p.relative_to(path).as_posix()] = p.read_text()
    if not main.is_file():
        raise KernelbraidError(f"there is no {main}: give a solution.py, a C++ source with the step ABI, or a folder with a {SOLUTION}")
    python = main.suffix in (".py", ".txt")  # public archives keep solutions as solution.py.txt
    if not python and main.suffix not in (".cpp", ".cc"):
        raise KernelbraidError(f"{main} is neither Python nor C++ (.py, .cpp): kernels in CUDA come inside a solution.py")
    name = path.name if main.stem != "solution" or path.is_dir() else path.resolve().parent.name
    return Candidate(
        role="solution", target=target, language="python" if python else "cpp", source=main.read_text(), files=files, name=name
    )


def evaluate(
    kernels: Annotated[
        list[Path], typer.Argument(help="solution.py, a folder with one, or C++ with the step ABI; several share their cases.")
    ],
    problem: Annotated[str, typer.Option(help="Problem folder under experiments/problems, or a path.")] = "kimi_linear_decode",
    size: Annotated[str, typer.Option(help="One of the problem's sizes.")] = "small",
    target: Annotated[str, typer.Option(help="cpu, or cuda: the first GPU that nvidia-smi lists.")] = "cpu",
    against: Annotated[list[Path] | None, typer.Option(help="Another kernel to pair each with; may be repeated.")] = None,
    rivals: Annotated[str, typer.Option(help="Baselines of the problem to pair each with, by commas.")] = "",
    processes: Annotated[int, typer.Option(min=1, help="Fresh process pairs; below 5 nothing is confirmed.")] = 5,
    pairs: Annotated[int, typer.Option(min=1, help="Interleaved pairs in each process pair.")] = 6,
    seeds: Annotated[int, typer.Option(min=1, help="Fresh cases under ordinary weights; two thirds as many under each probe.")] = 3,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all CPUs of this process.")] = 0,
    max_launches: Annotated[int | None, typer.Option(help="Allow so many launches per step, whatever the problem says.")] = None,
    graphs: Annotated[bool, typer.Option("--graphs", help="Allow graphs where the problem denies them.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check only, take no times.")] = False,
    look: Annotated[
        bool, typer.Option("--look", help="Measure one that did not pass all the same, as an observation and never as a result.")
    ] = False,
    store: Annotated[Path | None, typer.Option(help="Append the evaluations to this file (JSON lines, hash-chained).")] = None,
    cache: Annotated[Path | None, typer.Option(help="Weights and compiled kernels. Default: the user's cache folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The last line of stdout is JSON.")] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Judge even where nothing can contain a candidate.")] = False,
) -> None:
    """Judge kernels that somebody wrote: correctness under ordinary and probe weights, launches, times. Exit 0 if all passed.

    Examples:

      kernelbraid evaluate solution.py --problem gated_mlp --size small

      kernelbraid evaluate mine.py theirs.py --size full --target cuda --look
    """
    from orchestrator.cli_errors import plain_errors

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if target not in ("cpu", "cuda"):
        raise typer.BadParameter(f"--target is cpu or cuda, not '{target}'")
    with plain_errors(console):
        from sandbox.checking import CheckPlan, prepare_checks
        from sandbox.evaluation import Status, append
        from sandbox.judge import JudgeLimits
        from sandbox.judgement import SPARE_ROWS
        from sandbox.observation import observe
        from sandbox.problem import Problem
        from sandbox.timing import Effort

        chosen = Problem.load(problem, size)
        candidates = [candidate_of(path, "cuda" if target == "cuda" else "cpu") for path in kernels]
        others = {path.stem: candidate_of(path, "cuda" if target == "cuda" else "cpu") for path in against or ()}
        judge = _judge(cache, target, threads, unsafe, console)
        plan = CheckPlan(seeds=seeds, probe_seeds=max(1, 2 * seeds // 3))
        limits = JudgeLimits(checks=plan, effort=Effort(processes=processes, pairs=pairs), timed=not check, max_launches=max_launches,
                             graphs=graphs, rivals=tuple(w.strip() for w in rivals.split(",") if w.strip()))  # fmt: skip
        done: list[tuple[Evaluation, Observation | None]] = []
        with tempfile.TemporaryDirectory(prefix="kernelbraid-") as scratch:
            console.print(f"drawing cases of {chosen.name}/{size} and their truth")
            cases = prepare_checks(chosen, judge.weights(chosen), plan, Path(scratch))
            for candidate in candidates:
                result = judge.evaluate(candidate, chosen, limits, incumbents=others, checks=cases)
                if store is not None:
                    result = append(store, result)
                seen = None
                if look and result.status is not Status.PASSED and not check:
                    try:
                        seen = observe(judge, candidate, chosen, limits, chosen.context + SPARE_ROWS)
                    except KernelbraidError as error:
                        console.print(f"{candidate.name}: could not be observed either: {str(error).splitlines()[0]}", markup=False)
                done.append((result, seen))
                show(result, seen, console)
    if as_json:
        rows = [{"evaluation": r.model_dump(mode="json"), "observation": o.model_dump(mode="json") if o else None} for r, o in done]
        sys.stdout.write(json.dumps(rows) + "\n")
    raise typer.Exit(0 if all(r.status is Status.PASSED for r, _ in done) else 1)


def _judge(cache: Path | None, target: str, threads: int, unsafe: bool, console: Console) -> Judge:
    import platformdirs

    from sandbox.device import devices
    from sandbox.judge import Judge

    device = None
    if target == "cuda":
        found = devices()
        if not found:
            raise UnavailableError("nvidia-smi lists no GPU, so nothing can be judged for cuda here")
        device = found[0]
    folder = cache or platformdirs.user_cache_path("kernelbraid")
    return Judge(
        folder.resolve(), threads=threads or None, unsafe=unsafe, device=device, progress=lambda text: console.print(text, markup=False)
    )


def show(result: Evaluation, seen: Observation | None, console: Console) -> None:
    """What was found, tensor by tensor under each kind of weights, then times and launches."""
    from orchestrator.tables import said

    table = Table(title=f"{result.candidate_name}: {result.status} ({result.standing})", title_justify="left")
    for column in ("weights", "worst tensor", "error", "allowed", "wrong tensors"):
        table.add_column(column, justify="right" if column in ("error", "allowed") else "left")
    for probe, (name, error, wrong) in worst_by_probe(result).items():
        shown = ", ".join(wrong[:6]) + (f" and {len(wrong) - 6} more" if len(wrong) > 6 else "")
        table.add_row(probe, name, f"{error.rel_rms:.2e}", f"{error.allowed_rel_rms:.2e}", shown or "none")
    if table.row_count:
        console.print(table)
    rows: list[tuple[str, str]] = [("status", f"{result.status} ({result.standing})")]
    if result.log.strip():
        rows.append(("because", result.log.strip().splitlines()[0]))
    if result.times is not None:
        t = result.times
        rows.append(("one step, parent's clock", said(t.step_seconds, 1e6, " us")))
        if t.device_seconds is not None:
            rows.append(("one step, device events", said(t.device_seconds, 1e6, " us")))
        if t.once_seconds is not None:
            rows.append(("once per chain", f"{1e6 * t.once_seconds:.0f} us beside the steps"))
        rows += [(f"speedup over {name}", said(r, 1.0, "x")) for name, r in t.vs.items()]
    if result.dispatches_per_step is not None:
        word = "launches" if result.dispatch_evidence == "profiler" else "dispatches"
        rows.append(
            (f"{word} per step", f"{result.dispatches_per_step:g} (evidence: {result.dispatch_evidence}; {_kinds(result.launches)})")
        )
    rows += [("built in", f"{result.compile_seconds:.1f} s"), ("judged in", f"{result.seconds:.1f} s"), ("candidate", result.candidate)]
    if seen is not None:
        device = ""
        if seen.device_seconds is not None and seen.once_seconds is not None:
            device = f"{1e6 * seen.device_seconds:.1f} us between device events ({1e6 * seen.once_seconds:.0f} us more once per chain), "
        rows.append(
            ("observed, no result", f"{device}{1e6 * seen.wall_seconds:.1f} us by the parent's clock; per step: {_kinds(seen.launches)}")
        )
    for name, text in rows:
        console.print(f"  {name:<26}{text}", markup=False)


def _kinds(launches: dict[str, float]) -> str:
    return ", ".join(f"{n:g} {kind}" for kind, n in launches.items()) or "nothing on a device"


def worst_by_probe(result: Evaluation) -> dict[str, tuple[str, Any, list[str]]]:
    """Per kind of weights: the tensor that lies furthest out, its error, and the names of all that are wrong."""
    found: dict[str, tuple[str, Any, list[str]]] = {}
    for case in result.cases:
        for name, error in case.tensors.items():
            far = error.rel_rms / max(error.allowed_rel_rms, 1e-30)
            before = found.get(case.probe)
            wrong = [*(before[2] if before else []), *([name] if not error.ok and (not before or name not in before[2]) else [])]
            if before is None or far > before[1].rel_rms / max(before[1].allowed_rel_rms, 1e-30):
                found[case.probe] = (name, error, wrong)
            else:
                found[case.probe] = (before[0], before[1], wrong)
    return found
