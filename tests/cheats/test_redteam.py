"""The catalogue is whole, and the judge withstands a dozen of it; `kernelbraid redteam` tries all."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from orchestrator import redteam
from orchestrator.cli import app
from orchestrator.redteam import ABI, KERNEL, Cheat, candidate_of, judged, load_catalogue, settle
from sandbox.errors import KernelbraidError, RecordError
from sandbox.evaluation import Evaluation, Interval, Standing, Status, Times
from sandbox.judge import Judge

HERE = Path(__file__).resolve().parent
CHEATS = {c.name: c for c in load_catalogue()}
# One of each family, the quick ones.
DOZEN = ("fingerprint_memo", "counter_late", "dtype_wide", "comparator", "scribble_input", "network", "answer_later_cpp",
         "state_not_written_cpp", "plugin_flag_cpp", "memory_hog_cpp", "honest_workspace", "honest_kernel_cpp")  # fmt: skip


def test_every_cheat_has_its_file_and_says_what_it_does() -> None:
    assert len(CHEATS) == len(load_catalogue()), "two have one name"
    for cheat in CHEATS.values():
        text = (HERE / cheat.file).read_text()
        if cheat.language == "python":
            about = ast.get_docstring(ast.parse(text)) or ""
        else:
            about = " ".join(line.strip("/ ") for line in text.splitlines()[:3] if line.startswith("// "))
            assert (KERNEL in text) != (ABI in text), cheat.file
        if not cheat.honest:
            assert "aught" in about, f"{cheat.file} does not say what catches it"
        assert len(about) > 20, cheat.file


def test_no_file_is_left_out() -> None:
    files = {p.relative_to(HERE).as_posix() for folder in ("python", "cpp", "gpu") for p in (HERE / folder).iterdir() if p.is_file()}
    assert files == {c.file for c in CHEATS.values()}


def test_it_is_a_large_team() -> None:
    hostile = [c for c in CHEATS.values() if not c.honest]
    assert len([c for c in hostile if not c.gpu]) >= 44
    assert len([c for c in hostile if c.gpu]) >= 8
    kinds = {c.kind for c in hostile if not c.gpu}
    assert kinds >= {f"H{n:02d}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 17, 18, 20, 21, 22, 23, 24, 25, 26, 28, 29, 33, 34, 35,
                                           36, 40, 41, 43, 44, 45, 46, 47, 48)}  # fmt: skip


def test_every_candidate_can_be_made() -> None:
    made = {candidate_of(c).id for c in CHEATS.values()}
    assert len(made) == len(CHEATS), "two of them are the same"


def test_a_hostile_one_may_never_just_pass() -> None:
    with pytest.raises((RecordError, ValidationError), match="passed"):
        Cheat(kind="H01", name="x", file="x.py", defence="", language="python", caught=("passed",))
    with pytest.raises((RecordError, ValidationError), match="names what counts as caught"):
        Cheat(kind="H01", name="x", file="x.py", defence="", language="python")


def test_without_a_checkout_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(KernelbraidError, match="needs a checkout"):
        load_catalogue(tmp_path)


@pytest.mark.parametrize(
    ("caught", "status", "standing", "ratio", "good"),
    [
        (("wrong",), Status.WRONG, Standing.PROVISIONAL, None, True),
        (("wrong",), Status.CRASH, Standing.PROVISIONAL, None, False),
        (("wrong",), Status.INFRASTRUCTURE, Standing.PROVISIONAL, None, False),
        (("wrong",), Status.PASSED, Standing.PROVISIONAL, 0.3, False),
        (("no gain",), Status.PASSED, Standing.PROVISIONAL, 0.3, True),
        (("no gain",), Status.PASSED, Standing.PROVISIONAL, 2.0, False),
        (("no gain",), Status.PASSED, Standing.PROVISIONAL, None, False),
        (("quarantined",), Status.PASSED, Standing.QUARANTINED, 9.0, True),
        (("quarantined",), Status.PASSED, Standing.CONFIRMED, 9.0, False),
    ],
)  # fmt: skip
def test_what_counts_as_caught(judge: Judge, caught: tuple[str, ...], status: Status, standing: Standing, ratio: float | None,
                               good: bool) -> None:  # fmt: skip
    cheat = Cheat(kind="H01", name="x", file="x.py", defence="", language="python", caught=caught)
    one = Interval(median=1.0, low=1.0, high=1.0, pairs=1)
    vs = {} if ratio is None else {"honest": Interval(median=ratio, low=ratio, high=ratio, pairs=1)}
    times = Times(step_seconds=one, vs=vs) if status is Status.PASSED else None
    evaluation = Evaluation.model_construct(status=status, standing=standing, times=times, log="a fault\nand more")
    assert settle(cheat, evaluation)[1] is good
    twin = cheat.model_copy(update={"caught": (), "honest": True})
    assert settle(twin, evaluation)[1] is (status is Status.PASSED)


@pytest.mark.parametrize(("turned", "code"), [(False, 0), (True, 1)])
def test_the_verb_says_whether_the_judge_holds(judge: Judge, monkeypatch: pytest.MonkeyPatch, turned: bool, code: int) -> None:
    """What does not compile is caught if it is hostile, and refused if it is called honest."""
    flag = CHEATS["plugin_flag_cpp"]
    if turned:
        monkeypatch.setattr(redteam, "load_catalogue", lambda: (flag.model_copy(update={"honest": True, "caught": ()}),))
    done = CliRunner().invoke(app, ["redteam", "--kind", flag.name, "--cache", str(judge.cache), "--json"])
    assert done.exit_code == code, done.output
    expected = (
        {"cheats": 0, "caught": 0, "honest": 1, "honest_passed": 0}
        if turned
        else {"cheats": 1, "caught": 1, "honest": 0, "honest_passed": 0}
    )
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@pytest.mark.redteam
@pytest.mark.parametrize("name", DOZEN)
def test_the_judge_withstands(judge: Judge, name: str) -> None:
    verdict = judged(CHEATS[name], judge)
    assert verdict.good, f"{name} ended as {verdict.status}: {verdict.why}"
