"""What the files of a run folder say, for the report. The same files give the same facts; nothing is measured or written here.

A folder may be unfinished or forged: what is damaged or missing becomes a fault or None.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memory.trick import Trick
from orchestrator.progress import first_line
from sandbox.errors import RecordError
from sandbox.evaluation import Evaluation, Interval, Purpose, Status, read_chain
from sandbox.plan import Plan


class Told(dict[str, Any]):
    """A JSON object of the run folder; a field that is not there is None, which the page shows as "not measured"."""

    def __missing__(self, key: str) -> None:
        return None


Event = Told


def digits(value: float | None, scale: float = 1.0) -> str | None:
    """Three digits, never an exponent."""
    if value is None:
        return None
    value *= scale
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}" if abs(value) >= 0.001 else f"{value:.6f}" if value else "0"


def said(x: Interval | Mapping[str, Any] | None, unit: str = "x", scale: float = 1.0) -> str | None:
    """A median with unit, 95 % interval and n."""
    if x is None:
        return None
    f: Mapping[str, Any] = x.model_dump() if isinstance(x, Interval) else x
    if f.get("median") is None:
        return None
    n = [f"{f['pairs']} samples"] if f.get("pairs") else []
    n += [f"{f['processes']} process pairs" if f["processes"] > 1 else "one process"] if f.get("processes") else []
    known = f.get("low") is not None and f.get("high") is not None
    span = f"95 % {digits(f['low'], scale)} to {digits(f['high'], scale)}" if known else "interval not measured"
    return f"{digits(f['median'], scale)}{unit} ({'; '.join([span, *n])})"


class Run:
    """What the files of a run folder say. Every property may be None or empty: the campaign may have ended anywhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[str] = []  # in red at the top
        self.settings, self.environment, self.summary = (self._json(f"{n}.json") for n in ("settings", "environment", "summary"))
        self.events = self._events()
        self.evaluations = self._evaluations()
        self.by_id = {e.id: (n, e) for n, e in enumerate(self.evaluations, 1)}
        self.nonce = hashlib.sha256(b"".join(self._bytes(n) for n in ("events.jsonl", "evaluations.jsonl", "summary.json"))).hexdigest()
        self._compare()

    # -- files -----------------------------------------------------------------------------------------------------

    def _bytes(self, name: str) -> bytes:
        path = self.folder / name
        return path.read_bytes() if path.is_file() else b""

    def _json(self, name: str) -> Told:
        try:
            value = json.loads(self._bytes(name) or b"{}", object_hook=Told)
        except ValueError:
            self.faults.append(f"{name} is damaged and was left out.")
            return Told()
        return value if isinstance(value, Told) else Told()

    def _events(self) -> list[Event]:
        events, bad = [], 0
        for line in self._bytes("events.jsonl").split(b"\n"):
            try:
                event = json.loads(line, object_hook=Told) if line.strip() else None
            except ValueError:
                bad += 1
                continue
            events += [event] if isinstance(event, Told) else []
        if bad:
            self.faults.append(f"{bad} lines of events.jsonl are damaged and were left out.")
        return events

    def _evaluations(self) -> list[Evaluation]:
        path = self.folder / "evaluations.jsonl"
        if not path.is_file():
            return []
        try:
            return read_chain(path)
        except RecordError as error:
            self.faults.append(
                f"The chain of evaluations is broken, so no number here is proven: {str(error).replace(str(path), path.name)}"
            )
        records = []
        for line in self._bytes("evaluations.jsonl").split(b"\n"):
            try:
                records.append(Evaluation.model_validate_json(line.decode(errors="replace")))
            except ValidationError:
                continue
        return records

    def _compare(self) -> None:
        """A chain cannot show that its newest records are gone; the summary, the events and the tricks can."""
        told = {e["evaluation"] for e in self.events if e.get("event") == "evaluation.completed" and e.get("evaluation")}
        gone = told - set(self.by_id)
        if gone:
            self.faults.append(f"{len(gone)} evaluations that the events name are not in evaluations.jsonl: {', '.join(sorted(gone))}")
        last = self.summary.get("last_evaluation")
        if last and (not self.evaluations or self.evaluations[-1].id != last):
            self.faults.append(
                "The last record of evaluations.jsonl is not the one that summary.json names: records were added or removed."
            )

    def of(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [e for e in self.events if e.get("event") in kinds]

    # -- what stands ------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def elapsed(self) -> float:
        """Seconds of campaign time that the events cover."""
        return max((float(e.get("elapsed") or 0.0) for e in self.events), default=0.0)

    @cached_property
    def incumbents(self) -> list[Event]:
        return self.of("incumbent.changed")

    @cached_property
    def start(self) -> Evaluation | None:
        """The first whole step that passed: what the search began with."""
        return next((e for e in self.evaluations if e.role == "solution" and e.status is Status.PASSED), None)

    @cached_property
    def final(self) -> Evaluation | None:
        """The newest timed pass of what the campaign ended with, else of the last incumbent, else of any whole step."""
        timed = [e for e in reversed(self.evaluations) if e.role == "solution" and e.times is not None]
        wanted = self.summary["candidate"] or next((e.candidate for e in timed if e.purpose is Purpose.REGRADE), None)
        wanted = wanted or (self.incumbents[-1]["candidate"] if self.incumbents else None)
        return next((e for e in timed if wanted in (None, e.candidate)), None)

    @cached_property
    def measured(self) -> Interval | None:
        """The final kernel's paired speedup over the start, if it was measured directly."""
        if self.final is None or self.final.times is None or self.start is None:
            return None
        names = ("start", self.start.candidate_name, self.start.candidate_name.split("@")[0])
        return next((r for n in names if (r := self.final.times.vs.get(n)) is not None), None)

    @property
    def estimate(self) -> float | None:
        return self.incumbents[-1].get("speedup") if self.incumbents else None

    @property
    def rivals(self) -> dict[str, Interval | None]:
        """Hand-written plans and baselines that were asked for, with the final kernel's ratio, if it was paired with them."""
        vs = self.final.times.vs if self.final and self.final.times else {}
        names = [str(n) for key in ("opponents", "rivals") for n in self.settings[key] or ()]
        return {n: vs.get(n) for n in names or vs}

    def stem(self, which: Evaluation | None) -> str | None:
        """Name of the kernel's files in kernels/, without ending."""
        if which is None:
            return None
        told = [str(i.get("megakernel")) for i in self.incumbents if i.get("candidate") == which.candidate]
        names = [Path(n).name for n in (*told, which.candidate_name, which.candidate_name.split("@")[0]) if n]
        return next((n for n in names if (self.folder / "kernels" / f"{n}.cpp").is_file()), None)

    def plan(self, which: Evaluation | None) -> Plan | None:
        stem = self.stem(which)
        try:
            return Plan.model_validate_json(self._bytes(f"kernels/{stem}.plan.json")) if stem else None
        except ValidationError:
            return None

    @cached_property
    def all_to_alls(self) -> list[tuple[str, int | None, int | None]]:
        """(which, all-to-alls, phases) of the start and the final plan."""
        plans = [("start", self.plan(self.start)), ("now", self.plan(self.final))]
        return [(n, p.all_to_alls, len(p.phases)) if p else (n, None, None) for n, p in plans]

    @cached_property
    def source(self) -> str | None:
        stem = self.stem(self.final)
        return self._bytes(f"kernels/{stem}.cpp").decode(errors="replace") if stem else None

    @property
    def build_line(self) -> str | None:
        lines = [x for x in (self.source or "").split("\n")[:30] if x.startswith("// Build:")]
        return lines[0].removeprefix("// Build:").strip() if lines else None

    @property
    def command(self) -> str | None:
        command = self.settings.get("command")
        return shlex.join(map(str, command)) if isinstance(command, list) else command

    # -- phases -------------------------------------------------------------------------------------------------------

    @cached_property
    def read_rate(self) -> float | None:
        """Bytes per second of the fastest read-only pass of this run. Stamps and share come from one process, so the pass is
        the share of the stamped sum. Low: it also reads states and cached rows, which the phases' bytes (weights) leave out."""
        rates = [
            1e6 * sum(p.bytes for p in t.phases) / (t.read_pass_share.median * stamped)
            for e in self.evaluations
            if (t := e.times) is not None and t.read_pass_share is not None and (stamped := sum(p.stamped_us for p in t.phases)) > 0
        ]
        return max(rates, default=None) or None

    def phases(self, which: Evaluation | None) -> list[dict[str, Any]]:
        """Phases of one kind added up over the layers."""
        rows: dict[str, dict[str, Any]] = {}
        for p in which.times.phases if which and which.times else ():
            name = re.sub(r"^([a-z]+)\d+\.", r"\1.", p.name)
            row = rows.setdefault(name, {"name": name, "n": 0, "stamped": 0.0, "predicted": 0.0, "sync": 0.0, "bytes": 0})
            row["n"] += 1
            for key, value in (("stamped", p.stamped_us), ("predicted", p.predicted_us), ("sync", p.sync_us), ("bytes", p.bytes)):
                row[key] += value
        for row in rows.values():
            row["floor"] = 1e6 * row["bytes"] / self.read_rate if self.read_rate else None
            row["predicted"], row["sync"] = row["predicted"] or None, row["sync"] or None
        return list(rows.values())

    # -- proposals ----------------------------------------------------------------------------------------------------

    @cached_property
    def proposals(self) -> dict[int, dict[str, Any]]:
        """Every proposal by number, with what became of it: `outcome` (good | bad | open), `verdict`, `evaluations`."""
        found: dict[int, dict[str, Any]] = {}
        stage = 0
        for e in self.events:
            kind, number = e.get("event"), _number(e.get("proposal"))
            if kind == "incumbent.changed":
                stage += 1
                _credit_parts(found, e)
            if number is None and kind == "trick.admitted":
                number = next((n for n, p in found.items() if p["candidate"] == e["trick"].get("candidate")), None)
            if number is None:
                continue
            told = whole if isinstance(whole := e.get("proposal"), dict) else {}
            p = found.setdefault(number, {"number": number, "specialist": "", "slot": "", "change": None, "why": "", "shown": (), "used": (),
                                          "candidate": None, "outcome": "open", "verdict": "not judged", "evaluations": [], "stage": stage,
                                          "skipped": False})  # fmt: skip
            p.update({k: v for k, v in told.items() if k in p and k != "evaluations"})
            p["candidate"] = e.get("candidate") or p["candidate"]
            self._judge(p, e)
        return found

    def _judge(self, p: dict[str, Any], e: Event) -> None:
        kind = e["event"]
        if kind == "evaluation.completed":
            p["evaluations"].append(e.get("evaluation"))
            p["specialist"] = p["specialist"] or e.get("specialist", "")
            passed = e.get("status") == "passed"
            p["outcome"], p["verdict"] = "open" if passed else "bad", "passed, not taken" if passed else str(e.get("status"))
        elif kind == "proposal.skipped":
            p.update(outcome="bad", verdict=f"skipped: {first_line(e.get('why'))}", skipped=True)
        elif kind == "trick.refused":
            p.update(outcome="bad", verdict=f"refused: {first_line(e.get('why'))}")
        elif kind == "stage.judged" and e.get("status") == "passed":
            p["verdict"] = f"passed, {digits(e['ratio'])}x of the stage alone (screened, no interval)"
        elif kind == "incumbent.changed":
            p.update(outcome="good", verdict=f"became the incumbent, {said(e.get('ratio'))}")
        elif kind == "trick.admitted" and p["outcome"] != "good":
            p.update(outcome="good", verdict=f"admitted to memory, {said(e['trick'].get('ratio'))}")

    @cached_property
    def lineage(self) -> list[dict[str, Any]]:
        """The start and each incumbent, with what was tried upon it and not taken (skipped ones only counted)."""
        nodes: list[dict[str, Any]] = [{"incumbent": None}, *({"incumbent": i} for i in self.incumbents)]
        for n, node in enumerate(nodes):
            here = [p for p in self.proposals.values() if p["stage"] == n and p["outcome"] != "good"]
            node["tried"] = [p for p in here if not p["skipped"]]
            node["skipped"] = len(here) - len(node["tried"])
        return nodes

    @cached_property
    def specialists(self) -> list[dict[str, Any]]:
        rows: dict[str, Counter[str]] = {}
        for p in self.proposals.values():
            row = rows.setdefault(p["specialist"] or "unnamed", Counter())
            row.update(proposals=1, skipped=int(p["skipped"]))
        for e in self.of("evaluation.completed", "trick.admitted", "incumbent.changed"):
            if e["event"] == "evaluation.completed" and not e.get("specialist"):
                continue
            row = rows.setdefault(e.get("specialist") or "unnamed", Counter())
            if e["event"] == "evaluation.completed":
                row.update(judged=1, passed=int(e.get("status") == "passed"), milliseconds=int(1000 * (e.get("seconds") or 0.0)))
            else:
                row[e["event"]] += 1
        return [{"name": n, "counts": c} for n, c in rows.items()]

    # -- what failed, what was proven -----------------------------------------------------------------------------------

    @cached_property
    def _completed(self) -> dict[str, Event]:
        return {str(e.get("evaluation")): e for e in self.of("evaluation.completed")}

    def asked(self, evaluation: Evaluation) -> Event:
        """The event that announced it: specialist and proposal."""
        return self._completed.get(evaluation.id, Told())

    @cached_property
    def failures(self) -> dict[str, list[tuple[int, Evaluation]]]:
        groups: dict[str, list[tuple[int, Evaluation]]] = {}
        for n, e in enumerate(self.evaluations, 1):
            if e.status is not Status.PASSED:
                groups.setdefault(str(e.status), []).append((n, e))
        return dict(sorted(groups.items(), key=lambda g: -len(g[1])))

    @cached_property
    def tricks(self) -> list[dict[str, Any]]:
        """Admitted tricks; `fault` says what is wrong with the proof, "" if all its evaluations stand in the chain."""
        rows = []
        for e in self.of("trick.admitted"):
            trick = e["trick"] if isinstance(e.get("trick"), dict) else {}
            proofs = [self.by_id[i][1] for i in trick.get("evaluations", ()) if i in self.by_id]
            ratios = [r.model_dump(mode="json") for p in proofs if p.times for r in p.times.vs.values()]
            fault = ""
            if len(proofs) < max(1, len(trick.get("evaluations", ()))):
                fault = "an evaluation that it names is missing"
            elif all(p.standing != "confirmed" for p in proofs):
                fault = "none of its evaluations is confirmed"
            elif not any(_same(trick.get("ratio"), r) for r in ratios):
                fault = "its ratio stands in none of its evaluations"
            rows.append({"trick": trick, "specialist": e.get("specialist"), "fault": fault})
        return rows

    @cached_property
    def recalled(self) -> list[dict[str, Any]]:
        """Tricks that memory gave, each with the proposals that were shown it and what became of those that used it."""
        rows = []
        for trick in (t for e in self.of("memory.recalled") for t in e.get("tricks") or () if isinstance(t, dict)):
            key = _trick_id(trick)
            shown = [p for p in self.proposals.values() if key in p["shown"] or key in p["used"]]
            rows.append({"trick": trick, "id": key, "shown": len(shown), "used": [p for p in shown if key in p["used"]]})
        return rows

    @property
    def course(self) -> list[Event]:
        """What interrupted the campaign."""
        return self.of("campaign.started", "campaign.resumed", "campaign.interrupted", "campaign.finished", "worker.lost",
                       "worker.replaced", "bisection.ended", "evaluation.abandoned", "evaluation.recovered", "run.interrupted")  # fmt: skip


def _credit_parts(proposals: Mapping[int, dict[str, Any]], changed: Event) -> None:
    """Choices that were screened one by one and are now part of an incumbent."""
    parts = {(slot, c["id"]) for slot, c in ((changed["change"] or {}).get("choices") or {}).items()}
    for p in proposals.values():
        own = {(slot, c["id"]) for slot, c in ((p["change"] or {}).get("choices") or {}).items()}
        if own and own <= parts and p["outcome"] == "open":
            p.update(outcome="good", verdict=f"{p['verdict']}; taken with proposal {_number(changed['proposal'])}")


def _number(proposal: object) -> int | None:
    """Number of a proposal that an event names, by number or whole."""
    if isinstance(proposal, dict):
        proposal = proposal.get("number")
    return proposal if isinstance(proposal, int) else None


def _same(told: object, proven: Mapping[str, Any]) -> bool:
    return isinstance(told, Mapping) and all(told.get(k) == proven[k] for k in ("median", "low", "high", "processes"))


def _trick_id(trick: Mapping[str, Any]) -> str:
    if trick.get("id"):
        return str(trick["id"])
    try:
        return Trick.model_validate(trick).id
    except ValidationError:
        return ""
