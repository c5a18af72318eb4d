"""The object that a campaign ends with: what --json prints and what the run folder keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.evaluation import Evaluation, Interval, Status, read_chain

if TYPE_CHECKING:
    from orchestrator.campaign import Campaign


def ratio(r: Interval | None) -> dict[str, Any] | None:
    """A paired ratio with what it rests on."""
    return None if r is None else {"median": r.median, "low": r.low, "high": r.high, "pairs": r.pairs, "processes": r.processes}


def verdict(name: str, r: Interval | None, share: float | None) -> str:
    """A sentence on how the result stands to an opponent, with the reason that the measurements give."""
    if r is None:
        return f"{name}: not paired"
    said = f"{r.median:.3f}x ({r.low:.3f} to {r.high:.3f})"
    if r.low > 1.0:
        return f"{name}: beaten, {said}"
    left = f"; the result already runs at {share:.0%} of the rate of a read-only pass over its pages, so little is left" if share else ""
    if r.high < 1.0:
        return f"{name}: not beaten, {said}: it is faster"
    return f"{name}: no difference that {r.processes} process pairs can show, {said}{left}"


def summarise(campaign: Campaign, final: Evaluation) -> dict[str, Any]:
    """Everything a script may want to know; no key is ever missing."""
    folder, s = campaign.folder, campaign.settings
    times = final.times
    vs = dict(times.vs) if times else {}
    plan, start = campaign.incumbent.candidate.plan, campaign.start.candidate.plan
    records = read_chain(folder.evaluations)
    statuses: dict[str, int] = {}
    for record in records:
        statuses[record.status] = statuses.get(record.status, 0) + 1
    return {
        "status": str(final.status),
        "standing": str(final.standing),
        "reason": final.log.strip(),
        "problem": f"{final.problem}/{final.size}",
        "run_folder": str(folder.path),
        "kernel": str(folder.path / "kernels" / "final.cpp"),
        "candidate": final.candidate,
        "megakernel": campaign.incumbent.name,
        "engine": s.engine,
        "seed": s.seed,
        "evaluations": len(records),
        "candidates": len({r.candidate for r in records}),
        "statuses": statuses,
        "last_evaluation": records[-1].id if records else "",
        "load_average": final.load_average,
        "dispatches_per_step": final.dispatches_per_step,
        "dispatch_evidence": final.dispatch_evidence,
        "all_to_alls": plan.all_to_alls if plan else None,
        "start_all_to_alls": start.all_to_alls if start else None,
        "step_us": None if times is None else 1e6 * times.step_seconds.median,
        "speedup_vs_start": ratio(vs.get("start")),
        "speedup_vs_opponents": {name: ratio(vs.get(name)) for name in s.opponents},
        "verdicts": [
            verdict(n, vs.get(n), times.read_pass_share.median if times and times.read_pass_share else None)
            for n in ("start", *s.opponents)
        ],
        "speedup_vs_rivals": {name: ratio(vs.get(name)) for name in s.rivals},
        "estimated_speedup": campaign.incumbent.speedup,
        "byte_floor_share": times.read_pass_share.median if times and times.read_pass_share else None,
        "peak_bytes": final.peak_bytes,
        "line": [{"name": i.name, "candidate": i.candidate.id, "evaluation": i.evaluation, "speedup": i.speedup} for i in campaign.line],
        "choices": {slot: str(choice) for slot, choice in sorted(campaign.incumbent.choices.items())},
        "rewrites": [str(r) for r in campaign.incumbent.rewrites],
        "tricks_admitted": campaign.tricks,
        "tricks_recalled": [t.id for t in campaign.memories.tricks],
        "passed": final.status is Status.PASSED,
        "walls": list(final.environment.walls),
        "missing_walls": list(final.environment.missing_walls),
        "seconds": round(folder.elapsed(), 1),
    }
