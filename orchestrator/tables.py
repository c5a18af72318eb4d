"""What a person sees at the end of the main job."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from orchestrator.job import Outcome
from sandbox.evaluation import Interval


def show(outcome: Outcome, console: Console) -> None:
    """Stages, phases, verdict."""
    if outcome.stages:
        table = Table(title="stages alone (as split by the plans)", title_justify="left")
        for column in ("stage / split", "status", "cold us", "implementation"):
            table.add_column(column, justify="right" if column == "cold us" else "left")
        for name, e in outcome.stages:
            us = f"{1e6 * e.times.step_seconds.median:.1f}" if e.times else ""
            table.add_row(name, str(e.status), us, e.candidate_name.split("@")[0])
        console.print(table)
    for name, (plan, _, e) in outcome.plans.items():
        if e.times is None:
            console.print(f"plan '{name}': {e.status}\n{e.log}")
            continue
        table = Table(title=f"plan '{name}': {plan.all_to_alls} all-to-alls, {len(plan.phases)} phases", title_justify="left")
        for column in ("phase", "predicted us", "stamped us", "pages MB"):
            table.add_column(column, justify="left" if column == "phase" else "right")
        for p in e.times.phases:
            table.add_row(p.name, f"{p.predicted_us:.1f}", f"{p.stamped_us:.1f}", f"{p.bytes / 1e6:.2f}")
        total = [sum(getattr(p, f) for p in e.times.phases) for f in ("predicted_us", "stamped_us", "bytes")]
        table.add_section()
        table.add_row("all", f"{total[0]:.1f}", f"{total[1]:.1f}", f"{total[2] / 1e6:.2f}")
        console.print(table)
    summary = outcome.summary
    rows = [("status", f"{summary['status']} ({summary['standing']})")]
    if summary["reason"]:
        rows.append(("because", summary["reason"].splitlines()[0]))
    last = list(outcome.plans.values())[-1][2]
    if last.times is not None:
        rows.append(("one step", said(last.times.step_seconds, 1e6, " us")))
        rows += [(f"speedup over {name}", said(r, 1.0, "x")) for name, r in last.times.vs.items()]
        if last.times.read_pass_share:
            rows.append(("of the read-only pass's rate", said(last.times.read_pass_share, 100.0, " %")))
    rows += [
        ("dispatches per step", f"{summary['dispatches_per_step']} (evidence: {summary['dispatch_evidence']})"),
        ("all-to-alls", f"{summary['all_to_alls']} (unfused: {summary['unfused_all_to_alls']})"),
        ("tricks admitted to memory", str(summary["memory_admitted"])),
        ("kernel", summary["kernel"]),
        ("run folder", summary["run_folder"]),
    ]
    console.print(
        "predicted: the stages alone, cold, added up; stamped: the runtime's clock in repeated steps, the first phase with waking the team"
    )
    console.print("result")
    for name, text in rows:
        console.print(f"  {name:<30}{text}")


def said(x: Interval, scale: float, unit: str) -> str:
    """Median with its interval and what it rests on."""
    processes = f"{x.processes} process pairs" if x.processes > 1 else "one process"
    median, low, high = (plain(scale * v) for v in (x.median, x.low, x.high))
    return f"{median}{unit}  (95 % {low} to {high}; {x.pairs} samples, {processes})"


def plain(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
