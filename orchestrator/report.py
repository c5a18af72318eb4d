"""A run folder -> one self-contained report.html. Pure: the same files give the same page; nothing is measured or fetched here.

The page shows text of candidates (logs, sources, reasons of a model). It is escaped by the template, made visible where it
would hide or reorder, and a content security policy lets only the page's own two scripts run.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from orchestrator.progress import clock, describe_change, first_line, sentence, visible
from orchestrator.report_data import Run, digits, said
from sandbox.errors import KernelbraidError
from sandbox.evaluation import Evaluation

NAME = "report.html"


class ReportError(KernelbraidError):
    """There is nothing to report on."""


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, finished or not, and return its path.

    Raises ReportError if the folder is no run folder."""
    if not (folder / "settings.json").is_file() and not (folder / "evaluations.jsonl").is_file():
        raise ReportError(f"{folder} is no run folder (no settings.json, no evaluations.jsonl); name one under the runs folder")
    run = Run(folder)
    plotly = (importlib.resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    env = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, finalize=_shown, trim_blocks=True,
                             lstrip_blocks=True)  # fmt: skip
    env.filters |= {
        "interval": said,
        "digits": digits,
        "first_line": first_line,
        "change": describe_change,
        "clock": clock,
        "event": sentence,
    }
    env.globals |= {"mono": lambda text: str(text or "")[:12], "worst_error": worst_error}
    settings = json.dumps(run.settings, indent=2, sort_keys=True, ensure_ascii=False)
    page = env.get_template("report.html.j2").render(run=run, figures=figures(run), plotly=plotly, nonce=run.nonce, settings_text=settings)
    path = folder / NAME
    partial = path.with_suffix(".partial")
    partial.write_text(page, encoding="utf-8", errors="replace")
    partial.replace(path)
    return path


def _shown(value: Any) -> Any:
    """What every expression of the template passes: nothing is ever shown as 0 or left empty because it is unknown."""
    if value is None:
        return "not measured"
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def figures(run: Run) -> dict[str, Any]:
    """Plain numbers for the page's script."""
    points: list[dict[str, Any]] = [{"s": 0.0, "n": 0, "y": 1.0, "who": "start", "label": "the start"}]
    marks, evaluations = [], 0
    for e in run.events:
        at: dict[str, Any] = {"s": float(e.get("elapsed") or 0.0), "n": evaluations}
        if e.get("event") == "evaluation.completed":
            evaluations += 1
        elif e.get("event") == "incumbent.changed":
            label = f"{describe_change(e.get('change'))}\n{said(e.get('ratio'))} over the one before"
            points.append(at | {"y": e.get("speedup"), "who": visible(str(e.get("specialist") or "unnamed")), "label": label})
        elif e.get("event") in ("campaign.resumed", "worker.lost"):
            marks.append(at | {"label": sentence(e)})
    end: dict[str, Any] = {"s": run.elapsed, "n": evaluations}
    m = run.measured
    final: dict[str, Any] | None = None if m is None else end | {"y": m.median, "low": m.low, "high": m.high, "label": said(m)}
    sides = [("start", run.start), ("now", run.final if run.final is not run.start else None)]
    return {
        "points": points,
        "marks": marks,
        "end": end,
        "final": final,
        "phases": [{"which": n, "rows": run.phases(e)} for n, e in sides],
    }


def worst_error(evaluation: Evaluation) -> float | None:
    """Largest error of an evaluation's cases as a share of what is allowed."""
    return max((t.rel_rms / t.allowed_rel_rms for t in _tensors(evaluation) if t.allowed_rel_rms > 0), default=None)


def _tensors(evaluation: Evaluation) -> Iterable[Any]:
    cases: Sequence[Any] = evaluation.cases
    return (t for c in cases for t in c.tensors.values())
