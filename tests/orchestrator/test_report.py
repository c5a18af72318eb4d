"""The report: what it says of a finished, an unfinished and a forged folder, and how a browser takes it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report import ReportError, figures, write_report
from orchestrator.report_data import Run, digits, said
from sandbox.evaluation import Interval
from tests.orchestrator.run_folder_kit import Builder, build

SECTIONS = ["headline", "speedup", "phases", "all-to-alls", "lineage", "specialists", "failures", "tricks", "memory", "evaluations", "source",
            "walls", "reproduce"]  # fmt: skip
CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build(tmp_path_factory.mktemp("runs") / "done")
    write_report(folder)
    return folder


def text_of(folder: Path) -> str:
    """The page without its scripts."""
    page = write_report(folder).read_text()
    return re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_what_it_says(done: Path) -> None:
    page = text_of(done)
    assert re.findall(r'<section id="([a-z-]+)">', page) == SECTIONS
    assert 'role="alert"' not in page, "nothing is wrong with this folder"
    run = Run(done)
    assert run.measured is not None and f"{run.measured.median:.2f}x" in page
    assert "24 → 6" in page, "all-to-alls of the two plan files"
    assert list(run.rivals) == ["fused", "baseline", "torch_best"] and run.rivals["torch_best"] is None
    assert re.search(r'speedup over torch_best</div><div class="value">not measured', page), "asked for and not paired: never 0"
    assert "30 samples, 5 process pairs" in page
    assert "Missing, so a candidate was less contained" in page and "cgroup-memory: no writable memory group" in page
    assert "g++ -std=c++20 -O3 this.cpp -o kernel.so" in page and "0123abcd" in page
    for name, count in (("wrong", 1), ("compile_error", 1), ("hang", 1)):
        assert f'<h3>{name} <span class="dim">({count})' in page


def test_what_became_of_every_proposal(done: Path) -> None:
    proposals = Run(done).proposals
    verdicts = {n: p["verdict"] for n, p in proposals.items()}
    assert [verdicts[n] for n in (1, 2, 3)] == ["compile_error", "wrong", "hang"]
    assert "1.30x of the stage alone" in verdicts[4] and "taken with proposal 5" in verdicts[4]
    assert verdicts[5].startswith("became the incumbent, 1.18x (95 % 1.16 to 1.20")
    assert verdicts[6] == "skipped: failed before here: wrong"
    assert verdicts[8].startswith("refused: the interval of the ratio starts at 0.970")
    lineage = Run(done).lineage
    assert [len(n["tried"]) for n in lineage] == [3, 0, 1, 0] and [n["skipped"] for n in lineage] == [0, 1, 0, 0]


def test_specialists_and_memory_are_counted(done: Path) -> None:
    run = Run(done)
    counts = {r["name"]: r["counts"] for r in run.specialists}
    assert counts["linear"]["proposals"] == 4 and counts["linear"]["skipped"] == 1
    assert counts["linear"]["judged"] == 3 and counts["linear"]["passed"] == 2 and counts["linear"]["trick.admitted"] == 1
    assert counts["attention"]["judged"] == 1 and counts["attention"]["passed"] == 0
    used, unused = run.recalled
    assert used["shown"] == 5 and "wrong" in [p["verdict"] for p in used["used"]]
    assert unused["shown"] == 0 and unused["used"] == []


def test_the_curve_and_the_phases(done: Path) -> None:
    shown = figures(Run(done))
    assert [round(p["y"], 3) for p in shown["points"]] == [1.0, 1.18, 1.322, 1.441]
    assert [p["n"] for p in shown["points"]] == sorted(p["n"] for p in shown["points"])
    assert shown["final"]["y"] < shown["points"][-1]["y"], "measured, not the product"
    start, final = shown["phases"]
    assert {r["name"]: r["n"] for r in final["rows"]} == {"kda.heads": 2, "moe.experts": 3, "mla.heads": 1, "emit": 1}
    assert len(start["rows"]) == 13
    assert sum(r["floor"] for r in final["rows"]) <= sum(r["stamped"] for r in final["rows"])


def test_hostile_text_is_shown_and_does_nothing(done: Path) -> None:
    page = write_report(done).read_text()
    assert "<script>window" not in page and "<img" not in page
    assert "&lt;script&gt;window.hacked = 1" in page, "a log is shown, not dropped"
    assert "\x00" not in page and "\x1b" not in page and "\u202e" not in page and "\u2028" not in page.split("<script nonce")[0]
    assert "&lt;U+0000&gt;&lt;U+001B&gt;[31mred&lt;U+202E&gt;" in page
    assert "{{ 7 * 7 }} second line" in page, "text is no template"


def test_an_unfinished_folder_has_a_report(tmp_path: Path) -> None:
    page = text_of(build(tmp_path / "open", finished=False))
    assert "unfinished: this is what is there so far" in page
    assert "interval not measured" in page and "1.44x, the product of 3 paired medians" in page
    assert re.findall(r'<section id="([a-z-]+)">', page) == SECTIONS


def test_a_folder_at_every_age(tmp_path: Path) -> None:
    """A campaign may die anywhere; the report is made from whatever stands."""
    builder = Builder(tmp_path / "run")
    builder.folder.write_json("settings.json", {})
    assert "No whole step was judged yet" in text_of(builder.folder.path)
    for _ in builder.steps():
        assert re.findall(r'<section id="([a-z-]+)">', text_of(builder.folder.path)) == SECTIONS
    with pytest.raises(ReportError, match="no run folder"):
        write_report(tmp_path)


def forge(folder: Path, name: str, old: bytes, new: bytes) -> None:
    path = folder / name
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def test_a_broken_chain_is_said_in_red(tmp_path: Path) -> None:
    folder = build(tmp_path / "run")
    forge(folder, "evaluations.jsonl", b'"rel_rms":0.31', b'"rel_rms":0.30')
    page = text_of(folder)
    assert "The chain of evaluations is broken, so no number here is proven: evaluations.jsonl:3" in page
    assert 'class="state bad"' in page
    assert len(Run(folder).evaluations) == 11, "what is there is still shown"


def test_newest_records_cannot_be_dropped_in_silence(tmp_path: Path) -> None:
    folder = build(tmp_path / "run")
    lines = (folder / "evaluations.jsonl").read_bytes().split(b"\n")
    (folder / "evaluations.jsonl").write_bytes(b"\n".join(lines[:-2]) + b"\n")
    faults = Run(folder).faults
    assert any("1 evaluations that the events name are not" in f for f in faults)
    assert any("not the one that summary.json names" in f for f in faults)


def test_a_trick_without_its_proof_is_called_unproven(tmp_path: Path) -> None:
    folder = build(tmp_path / "run")
    assert [t["fault"] for t in Run(folder).tricks] == ["", "", ""]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().split("\n")[:-1]]
    tricks = [e["trick"] for e in events if e["event"] == "trick.admitted"]
    tricks[0]["ratio"]["median"] = tricks[0]["ratio"]["high"]
    tricks[1]["evaluations"] = ["0" * 64]
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events) + '{"event": "torn')
    run = Run(folder)
    assert [t["fault"] for t in run.tricks] == ["its ratio stands in none of its evaluations", "an evaluation that it names is missing", ""]
    assert run.faults == ["1 lines of events.jsonl are damaged and were left out."]


def test_the_same_folder_gives_the_same_page(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "copy")
    assert write_report(tmp_path / "copy").read_bytes() == write_report(done).read_bytes()


@pytest.mark.parametrize(
    ("value", "text"), [(None, None), (0.0, "0"), (1.2, "1.20"), (61.04, "61.0"), (1400.4, "1,400"), (0.00002, "0.000020")]
)
def test_numbers(value: float | None, text: str | None) -> None:
    assert digits(value) == text


def test_an_interval_says_what_it_rests_on() -> None:
    x = Interval(median=1.42, low=1.39, high=1.45, pairs=30, processes=5)
    assert said(x) == "1.42x (95 % 1.39 to 1.45; 30 samples; 5 process pairs)"
    assert said({"median": 1.1}) == "1.10x (interval not measured)"
    assert said(None) is None and said({}) is None


# -- in a browser --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(done: Path, browser: Any, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    trouble: list[str] = []
    requests: list[str] = []
    page.on("console", lambda m: trouble.append(m.text))
    page.on("pageerror", lambda e: trouble.append(str(e)))
    page.on("dialog", lambda d: trouble.append(d.message))
    page.on("request", lambda r: requests.append(r.url))
    page.goto((done / "report.html").as_uri())
    page.wait_for_selector("#curve .main-svg")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.wait_for_timeout(200)
    assert page.eval_on_selector_all("section", "all => all.map(s => s.id)") == SECTIONS
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert page.evaluate("window.hacked") is None
    assert page.locator("#phases-start .main-svg").count() > 0 and page.locator("#phases-now .main-svg").count() > 0
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(21, 24, 28)") == (scheme == "dark")
    assert trouble == [] and requests == [(done / "report.html").as_uri()]
    context.close()


def test_the_page_can_be_used(done: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((done / "report.html").as_uri())
    title = "document.querySelector('#curve .xtitle').textContent"
    assert page.evaluate(title) == "seconds of campaign time"
    page.click("button[data-axis=n]")
    assert page.evaluate(title) == "evaluations"
    page.click("#headline a[href^='#e']")
    assert page.locator("#evaluations details").first.evaluate("d => d.open"), "a link to a record opens the table"
    cells = "[...document.querySelectorAll('#evaluations tbody tr')].map(r => r.cells[10].textContent)"
    before = page.evaluate(cells)
    page.locator("#evaluations th", has_text="judge s").click()
    assert page.evaluate(cells) == sorted(before, key=float) != before
    page.close()


def test_an_injected_script_does_not_run(done: Path, browser: Any, tmp_path: Path) -> None:
    """The policy holds even if text were not escaped."""
    forged = tmp_path / "forged.html"
    text = (done / "report.html").read_text()
    forged.write_text(text.replace("</main>", "<script>window.hacked = 9</script><img src=x onerror='window.hacked = 8'></main>", 1))
    page = browser.new_page()
    page.goto(forged.as_uri())
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    page.close()
