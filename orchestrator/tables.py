"""What a person sees at the end of a campaign."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from sandbox.evaluation import Evaluation, Interval


def show(summary: dict[str, Any], final: Evaluation, report: str, console: Console) -> None:
    """Phases of the result, the way to it, the verdict."""
    if final.times is not None and final.times.phases:
        table = Table(title=f"the result, phase by phase ({summary['all_to_alls']} all-to-alls)", title_justify="left")
        for column in ("phase", "predicted us", "stamped us", "pages MB"):
            table.add_column(column, justify="left" if column == "phase" else "right")
        for p in final.times.phases:
            table.add_row(p.name, f"{p.predicted_us:.1f}", f"{p.stamped_us:.1f}", f"{p.bytes / 1e6:.2f}")
        total = [sum(getattr(p, f) for p in final.times.phases) for f in ("predicted_us", "stamped_us", "bytes")]
        table.add_section()
        table.add_row("all", f"{total[0]:.1f}", f"{total[1]:.1f}", f"{total[2] / 1e6:.2f}")
        console.print(table)
        console.print(
            "predicted: the stages as far as they were measured; stamped: the runtime's clock, the first phase with waking the team"
        )
    rows = [("status", f"{summary['status']} ({summary['standing']})")]
    if summary["reason"]:
        rows.append(("because", summary["reason"].splitlines()[0]))
    if final.times is not None:
        rows.append(("one step", said(final.times.step_seconds, 1e6, " us")))
        rows += [(f"speedup over {name}", said(r, 1.0, "x")) for name, r in final.times.vs.items()]
        if final.times.read_pass_share:
            rows.append(("of the read-only pass's rate", said(final.times.read_pass_share, 100.0, " %")))
    rows += [("against", sentence) for sentence in summary["verdicts"]]
    rows += [
        ("dispatches per step", f"{summary['dispatches_per_step']} (evidence: {summary['dispatch_evidence']})"),
        ("all-to-alls", f"{summary['all_to_alls']} (start: {summary['start_all_to_alls']})"),
        ("evaluations", f"{summary['evaluations']} of {summary['candidates']} candidates: " + _counts(summary["statuses"])),
        ("tricks admitted to memory", str(len(summary["tricks_admitted"]))),
        ("tricks recalled from memory", str(len(summary["tricks_recalled"]))),
        ("took", f"{summary['seconds']:.0f} s"),
        ("kernel", summary["kernel"]),
        ("report", report),
        ("run folder", summary["run_folder"]),
    ]
    console.print("result")
    for name, text in rows:
        console.print(f"  {name:<30}{text}", markup=False)


def _counts(statuses: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(statuses.items(), key=lambda kv: -kv[1]))


def said(x: Interval, scale: float, unit: str) -> str:
    """Median with its interval and what it rests on."""
    processes = f"{x.processes} process pairs" if x.processes > 1 else "one process"
    median, low, high = (plain(scale * v) for v in (x.median, x.low, x.high))
    return f"{median}{unit}  (95 % {low} to {high}; {x.pairs} samples, {processes})"


def plain(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
