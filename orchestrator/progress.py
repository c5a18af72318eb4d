"""What a person sees while a campaign runs: a live view on a terminal, plain lines elsewhere.

Both are driven by the events of the run folder (`RunFolder.event`), so a view can also be fed from a file. Nothing here decides.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import ValidationError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from memory.change import Change

LAST_EVENTS = 5
NARROWEST = 50  # columns below which a live view is no help

Event = Mapping[str, Any]


class Progress(Protocol):
    """Where a campaign tells what happens. Safe to call from several threads; `close` may be called twice."""

    def event(self, event: Event) -> None:
        """One event as it stands in events.jsonl: `event` (noun.verb), `elapsed` in seconds, and its fields."""

    def say(self, text: str) -> None:
        """Free text for the reader."""

    def close(self) -> None:
        """Give the terminal back."""


def choose_progress(console: Console, plain: bool, limit_seconds: float = 0.0) -> LiveProgress | LineProgress:
    """The live view on a terminal that can show it, lines elsewhere or if `plain`. limit_seconds: budget of time, 0: none."""
    able = console.is_terminal and not console.is_dumb_terminal and console.width >= NARROWEST
    return LiveProgress(console, limit_seconds) if able and not plain else LineProgress(console)


# -- words ---------------------------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Text of a stranger, safe to show: characters that control, hide, reorder or break lines stand by number."""
    return "".join(c if c in "\n\t" or c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


def first_line(text: object, width: int = 160) -> str:
    """The first line that says anything, at most `width` characters."""
    for line in str(text or "").split("\n"):
        if line.strip():
            line = visible(line.strip())
            return line if len(line) <= width else line[: width - 1] + "…"
    return ""


def describe_change(change: object) -> str:
    """A Change (as JSON) in the words of its record; "" if there is none."""
    if not change:
        return ""
    try:
        return visible(str(Change.model_validate(change)))
    except (ValidationError, TypeError):
        return first_line(change)


def clock(seconds: float) -> str:
    """h:mm:ss."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def sentence(event: Event) -> str:
    """One line about an event; "" for those that only a table needs."""
    teller = _TELLERS.get(str(event.get("event")))
    try:
        return teller(event) if teller else ""
    except (KeyError, TypeError, ValueError):  # an event of another version must not end a campaign
        return f"{event.get('event')}: {first_line(event)}"


def _evaluation(e: Event) -> str:
    standing = f", {e['standing']}" if e["status"] == "passed" and e.get("standing") else ""
    who = f" [{e['specialist']}]" if e.get("specialist") else ""
    took = f" ({e['seconds']:.1f} s)" if e.get("seconds") is not None else ""
    return f"{e['name']}: {e['status']}{standing}{who} {e.get('purpose', '')}".rstrip() + took


def _incumbent(e: Event) -> str:
    r = e["ratio"]
    return (f"faster: {describe_change(e.get('change')) or e['megakernel']} {r['median']:.3f}x (95 % {r['low']:.3f} to {r['high']:.3f}), "
            f"{e['speedup']:.2f}x over the start [{e.get('specialist', '')}]")  # fmt: skip


def _recalled(e: Event) -> str:
    return f"memory: {len(e['tricks'])} tricks and {e['failures']} failures recalled"


_TELLERS: dict[str, Callable[[Event], str]] = {
    "campaign.started": lambda e: "campaign started",
    "campaign.resumed": lambda e: "campaign resumed",
    "campaign.interrupted": lambda e: "interrupted; what was judged is kept",
    "campaign.finished": lambda e: f"finished: {e['status']}" + (f" ({e['why']})" if e.get("why") else ""),
    "memory.recalled": _recalled,
    "evaluation.completed": _evaluation,
    "evaluation.abandoned": lambda e: f"evaluation abandoned: {str(e['key'])[:12]}",
    "evaluation.recovered": lambda e: f"evaluation recovered: {str(e['key'])[:12]}",
    "plan.priced": lambda e: f"plans: {e['considered']} considered, {e['legal']} legal, best {e['best_us']:.0f} us predicted "
                             f"(incumbent {e['incumbent_us']:.0f})",
    "bisection.ended": lambda e: f"guilty in {e['name']}: {', '.join(e['guilty']) or 'nobody found'}",
    "incumbent.changed": _incumbent,
    "trick.admitted": lambda e: f"trick admitted: {first_line(e['trick']['claim'])} [{e.get('specialist', '')}]",
    "trick.refused": lambda e: f"trick refused: {first_line(e['why'])} [{e.get('specialist', '')}]",
    "worker.lost": lambda e: f"worker {e['worker']} lost: {first_line(e.get('error'))}",
    "worker.replaced": lambda e: f"worker {e['worker']} replaced",
    "phase.entered": lambda e: f"phase {e['phase']}, round {e.get('round', 0)}" + (f" [{e['specialist']}]" if e.get("specialist") else ""),
}  # fmt: skip


# -- lines ---------------------------------------------------------------------------------------------------------


class LineProgress:
    """One line per event that a reader wants, with the time since the campaign began."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._elapsed = 0.0

    def event(self, event: Event) -> None:
        """Print the event's line, if it has one."""
        self._elapsed = float(event.get("elapsed") or self._elapsed)
        text = sentence(event)
        if text:
            self._print(f"[{clock(self._elapsed)}] {visible(text)}")

    def say(self, text: str) -> None:
        """Print it as it is."""
        self._print(visible(text))

    def close(self) -> None:
        """Nothing to give back."""

    def _print(self, text: str) -> None:
        with self._lock:
            self._console.print(Text(text), soft_wrap=True, highlight=False)


# -- live ----------------------------------------------------------------------------------------------------------


@dataclass
class _Counts:
    proposals: int = 0
    judged: int = 0
    passed: int = 0
    admitted: int = 0


@dataclass
class _Board:
    """What the events so far add up to."""

    counts: dict[str, _Counts] = field(default_factory=dict)
    running: dict[str, tuple[str, float]] = field(default_factory=dict)  # key -> what, seconds at which it started
    last: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=LAST_EVENTS))
    evaluations: int = 0
    tricks: int = 0
    steps: dict[str, float | None] = field(default_factory=dict)  # evaluation -> us per step, where the event says it
    speedup: float | None = None
    step_us: float | None = None
    phase: str = ""
    ended: bool = False

    def take(self, event: Event, elapsed: float) -> None:
        kind = str(event.get("event"))
        proposal = event.get("proposal")
        who = str(event.get("specialist") or (proposal.get("specialist") if isinstance(proposal, Mapping) else "") or "")
        if kind == "proposal.made":
            self._of(who).proposals += 1
        elif kind == "evaluation.started":
            self.running[str(event.get("key"))] = (f"{event.get('name')} ({event.get('purpose')})", elapsed)
        elif kind in ("evaluation.completed", "evaluation.abandoned", "evaluation.recovered"):
            self.running.pop(str(event.get("key")), None)
            if kind == "evaluation.completed":
                self._judged(event, who)
        elif kind == "incumbent.changed":
            self.speedup = event.get("speedup")
            self.step_us = event.get("step_us") or self.steps.get(str(event.get("evaluation")))
        elif kind == "trick.admitted":
            self.tricks += 1
            self._of(who).admitted += 1
        elif kind == "phase.entered":
            self.phase = sentence(event)
        elif kind.startswith("campaign."):
            self.running.clear()
            self.ended = kind in ("campaign.finished", "campaign.interrupted")
        text = sentence(event)
        if text:
            self.last.append((elapsed, text))

    def _judged(self, event: Event, who: str) -> None:
        self.evaluations += 1
        self.steps[str(event.get("evaluation"))] = event.get("step_us")
        if who:
            self._of(who).judged += 1
            self._of(who).passed += event.get("status") == "passed"

    def _of(self, who: str) -> _Counts:
        return self.counts.setdefault(who or "campaign", _Counts())


class LiveProgress:
    """A view that is redrawn in place four times a second; `say` prints above it."""

    def __init__(self, console: Console, limit_seconds: float = 0.0) -> None:
        self._console, self._limit = console, limit_seconds
        self._lock = threading.RLock()
        self._board = _Board()
        self._at, self._elapsed = time.monotonic(), 0.0
        self._live = Live(console=console, get_renderable=self._view, refresh_per_second=4)
        self._live.start()

    def event(self, event: Event) -> None:
        """Take it into the view."""
        with self._lock:
            if event.get("elapsed") is not None:
                self._at, self._elapsed = time.monotonic(), float(event["elapsed"])
            self._board.take(event, self._seconds())

    def say(self, text: str) -> None:
        """Print above the view, where it stays."""
        self._console.print(Text(visible(text)), soft_wrap=True, highlight=False)

    def close(self) -> None:
        """Leave the last state on the screen."""
        with self._lock:
            self._elapsed, self._board.ended = self._seconds(), True
        if self._live.is_started:
            self._live.refresh()
            self._live.stop()

    def _seconds(self) -> float:
        return self._elapsed if self._board.ended else self._elapsed + time.monotonic() - self._at

    def _view(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = [self._headline(), self._table()]
            now = self._seconds()
            for what, since in list(self._board.running.values())[:3]:
                parts.append(_line(("now   ", "dim"), (f"{visible(what)}, {clock(now - since)}", "")))
            for at, text in self._board.last:
                parts.append(_line((f"{clock(at)} ", "dim"), (visible(text), _style(text))))
            return Group(*parts)

    def _headline(self) -> Text:
        b, used = self._board, self._seconds()
        best = "not better yet" if b.speedup is None else f"{b.speedup:.2f}x"
        step = "" if b.step_us is None else f"   step {b.step_us:.0f} us"
        left = f", {clock(self._limit - used)} left" if self._limit else ""
        return Text.assemble(
            ("best over the start ", "dim"), (best, "bold green" if b.speedup else "bold"), (step, ""),
            (f"   {b.evaluations} evaluations, {b.tricks} tricks", ""), (f"\n{clock(used)} used{left}   {b.phase}", "dim"),
            no_wrap=True, overflow="ellipsis",
        )  # fmt: skip

    def _table(self) -> RenderableType:
        if not self._board.counts:
            return Text("no specialist has proposed anything yet", style="dim")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("specialist", overflow="ellipsis", no_wrap=True)
        for column in ("proposed", "judged", "passed", "admitted"):
            table.add_column(column, justify="right")
        for who, c in self._board.counts.items():
            table.add_row(Text(visible(who)), str(c.proposals), str(c.judged), str(c.passed), str(c.admitted))
        return table


def _line(*parts: tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _style(text: str) -> str:
    if text.startswith(("faster", "trick admitted")):
        return "green"
    return "yellow" if text.startswith(("worker", "interrupted")) else ""
