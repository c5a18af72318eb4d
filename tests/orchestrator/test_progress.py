"""Progress: what a terminal and a log file get from the events of a campaign."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.progress import LineProgress, LiveProgress, choose_progress, clock, describe_change, first_line, sentence, visible
from tests.orchestrator.run_folder_kit import build


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = build(tmp_path_factory.mktemp("runs") / "run")
    return [json.loads(line) for line in (folder / "events.jsonl").read_bytes().split(b"\n")[:-1]]


def terminal(width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=40, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lines(events: list[dict[str, Any]]) -> None:
    console = Console(file=io.StringIO(), width=80)
    progress = LineProgress(console)
    for event in events:
        progress.event(event)
    progress.say("free [bold]text[/bold]")
    progress.close()
    text = written(console)
    lines = text.split("\n")[:-1]
    completed = [e for e in events if e["event"] == "evaluation.completed"]
    assert sum(bool(re.search(r" \(\d+\.\d s\)$", x)) for x in lines) == len(completed) == 11, "one line per evaluation"
    assert any(x.endswith("] start: passed, provisional search (41.5 s)") for x in lines)
    assert sum("] faster: " in x for x in lines) == 3 and sum("trick admitted: " in x for x in lines) == 3
    assert any(x.startswith("[0:01:48] worker judge-1 lost: killed by signal 9 <script>") for x in lines)
    assert sum("1.090x (95 % 1.068 to 1.112), 1.44x over the start [experts]" in x for x in lines) == 1
    assert lines[-1] == "free [bold]text[/bold]", "text is no markup"
    assert len(lines) < len(events), "proposals are for tables"
    assert "\x1b" not in text and "\u2028" not in text


def test_a_line_without_its_time_keeps_the_last_one() -> None:
    console = Console(file=io.StringIO(), width=80)
    progress = LineProgress(console)
    progress.event({"event": "campaign.started", "elapsed": 61.0})
    progress.event({"event": "worker.replaced", "worker": "lane"})
    assert written(console) == "[0:01:01] campaign started\n[0:01:01] worker lane replaced\n"


def test_live_shows_what_the_events_add_up_to(events: list[dict[str, Any]]) -> None:
    console = terminal()
    progress = LiveProgress(console, limit_seconds=600)
    for event in events:
        progress.event(event)
    progress.close()
    progress.close()
    last = written(console).rsplit("best over the start", 1)[1]
    assert "1.44x" in last and "11 evaluations, 3 tricks" in last and re.search(r"0:05:\d\d used, 0:04:\d\d left", last)
    rows = {cells[0]: cells[1:] for line in last.split("\n") if len(cells := line.split()) == 5}
    assert rows["linear"] == ["3", "3", "2", "1"] and rows["attention"] == ["1", "1", "0", "0"], "proposed, judged, passed, admitted"
    assert "finished: passed (the budget is spent)" in last
    assert last.count("0:0") >= 6, "the last five events with their times"


def test_live_shows_what_is_under_way() -> None:
    console = terminal()
    progress = LiveProgress(console)
    progress.event({"event": "evaluation.started", "elapsed": 3.0, "key": "k", "name": "best-4", "purpose": "admit"})
    progress.say("a [red]word[/red] to keep")
    time.sleep(0.4)
    assert "now   best-4 (admit), 0:00:00" in written(console) and "a [red]word[/red] to keep" in written(console)
    progress.event({"event": "worker.lost", "elapsed": 4.0, "worker": "lane", "error": "signal 9"})
    progress.event({"event": "evaluation.abandoned", "elapsed": 4.1, "key": "k"})
    progress.close()
    last = written(console).rsplit("best over the start", 1)[1]
    assert "not better yet" in last and "best-4" not in last and "worker lane lost: signal 9" in last


def test_live_stands_many_threads_and_odd_events() -> None:
    console = terminal(60)
    progress = LiveProgress(console)
    odd = [{}, {"event": "incumbent.changed"}, {"event": "trick.admitted", "trick": None}, {"event": "evaluation.completed", "proposal": 7},
           {"event": "proposal.made", "proposal": None}, {"event": "never.heard.of", "x": "\x1b[2J"}]  # fmt: skip
    threads = [threading.Thread(target=lambda: [progress.event(e) for e in odd * 20]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    progress.close()
    assert "80 evaluations" in written(console)
    assert "\x1b[2J" not in written(console)


def test_which_view_is_chosen() -> None:
    assert isinstance(choose_progress(Console(file=io.StringIO()), plain=False), LineProgress)
    assert isinstance(choose_progress(terminal(), plain=True), LineProgress)
    assert isinstance(choose_progress(terminal(30), plain=False), LineProgress), "too narrow"
    live = choose_progress(terminal(), plain=False)
    live.close()
    assert isinstance(live, LiveProgress)


def test_words() -> None:
    assert clock(3725.9) == "1:02:05" and clock(-3) == "0:00:00"
    assert first_line("\n\n  one \ntwo") == "one" and first_line(None) == "" and len(first_line("x" * 900)) == 160
    assert visible("a\x00\x1b[31m\u202eb\u2028\ud800\tc\n") == "a<U+0000><U+001B>[31m<U+202E>b<U+2028><U+D800>\tc\n"
    assert describe_change({"rewrites": [{"kind": "join", "section": "kda", "subject": "norm"}]}) == "join kda/norm"
    assert describe_change({"nonsense": 1}) == "{'nonsense': 1}" and describe_change(None) == ""
    assert sentence({"event": "evaluation.started"}) == "" and sentence({"event": "plan.priced"}).startswith("plan.priced")


def test_a_real_terminal_gets_its_cursor_back(repo: Path) -> None:
    code = (
        "import time\nfrom rich.console import Console\nfrom orchestrator.progress import choose_progress\n"
        "p = choose_progress(Console(stderr=True), False, 60)\nprint(type(p).__name__)\n"
        "p.event({'event': 'campaign.started', 'elapsed': 0.0})\n"
        "try:\n    time.sleep(0.5)\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    pass\nfinally:\n    p.close()\n"
    )
    main, side = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", "PYTHONPATH": str(repo)}
    child = subprocess.Popen([sys.executable, "-c", code], stdin=side, stdout=side, stderr=side, env=env)
    os.close(side)
    seen = b""
    while select.select([main], [], [], 30)[0]:
        try:
            got = os.read(main, 4096)
        except OSError:  # the child is gone
            break
        if not got:
            break
        seen += got
    os.close(main)
    assert child.wait(30) == 0
    assert b"LiveProgress" in seen and b"campaign started" in seen
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l") >= 0, "the cursor was hidden and is shown again"
