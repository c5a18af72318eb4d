"""Every way in which a child can fail has a name, and none of them costs more than its limit."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from sandbox.box_errors import (
    BoxError,
    ChildCrashed,
    ChildError,
    ChildHung,
    ChildLimit,
    ChildProtocolError,
)
from sandbox.child_process import ChildProcess
from sandbox.walls import Level, probe_walls
from tests.sandbox.child_kit import (
    LIMITS,
    SOURCE,
    built,
    library,
    ready_child,
    run,
)


@pytest.mark.parametrize(("mischief", "name"), [(1, "SIGSEGV"), (8, "SIGSEGV"), (9, "SIGSEGV"), (4, "SIGABRT")])
def test_a_crash_names_its_signal(mischief: int, name: str) -> None:
    with ready_child(library(mischief)) as child, pytest.raises(ChildCrashed) as caught:
        run(child)
    assert caught.value.signal == name
    assert "created with" in caught.value.log
    if mischief == 4:
        assert "bad_alloc" in caught.value.log


def test_a_quiet_exit_is_a_crash_too() -> None:
    with ready_child(library(12)) as child, pytest.raises(ChildCrashed) as caught:
        run(child)
    assert (caught.value.signal, caught.value.exit_code) == (None, 0)


def test_an_endless_loop_is_a_hang_within_its_limit() -> None:
    begin = time.monotonic()
    with ready_child(library(2)) as child, pytest.raises(ChildHung) as caught:
        run(child, timeout=0.5)
    assert caught.value.command == "run"
    assert time.monotonic() - begin < 8


def test_the_wall_limit_of_the_box_holds_without_a_timeout() -> None:
    with ready_child(library(2), wall_s=3.0) as child, pytest.raises(ChildHung):
        child.run_chain("a", steps=1, position=1)


@pytest.mark.parametrize(("mischief", "which"), [(3, "memory"), (5, "output"), (14, "processes"), (15, "file")])
def test_limits_are_named(mischief: int, which: str) -> None:
    if probe_walls().level is not Level.BWRAP_CGROUP:
        pytest.skip("memory and processes are not held by groups here")
    with ready_child(library(mischief)) as child, pytest.raises(ChildLimit) as caught:
        run(child, timeout=20)
    assert caught.value.which == which
    assert len(caught.value.log) < 2 * LIMITS.output_bytes


def test_a_spin_ends_at_the_cpu_limit() -> None:
    with ready_child(library(2), cpu_s=1) as child, pytest.raises(ChildLimit) as caught:
        run(child, timeout=25)
    assert caught.value.which == "cpu"


def test_writing_past_the_end_within_the_page_is_reported() -> None:
    with ready_child(library(7)) as child:
        run(child)
        assert child.collect("a").overruns == ("hidden",)


def test_prints_do_not_reach_the_protocol() -> None:
    with ready_child(library(10)) as child:
        run(child)
        child.collect("a")
        child.quit()
    assert "forged" in child.log


def test_answers_forged_on_every_descriptor_are_noticed() -> None:
    with ready_child(library(11)) as child, pytest.raises(ChildProtocolError, match="id"):
        run(child)


@pytest.mark.parametrize("mischief", [6, 13])
def test_forks_of_a_candidate_are_bounded_and_gone(mischief: int) -> None:
    with ready_child(library(mischief)) as child:
        try:
            run(child, timeout=3)
        except ChildError as error:
            assert mischief == 6, error
        folders = child.box._cgroup.folders if child.box._cgroup else []
        assert all(len((f / "cgroup.procs").read_text().split()) <= LIMITS.processes + 2 for f in folders)
    report = child.report()
    assert (report.fork_refusals > 0) == (mischief == 6) or not folders
    assert not any(folder.exists() for folder in folders)


SNEAKY = """
#include <sys/stat.h>
#include <unistd.h>
struct Plant {{ Plant() {{ {body} }} }} plant;
"""


def test_a_link_planted_where_the_answer_goes_is_not_followed(tmp_path: Path) -> None:
    """The child (which runs as the candidate) would write through it, the parent must not read through it."""
    body = 'for (int n = 0; n < 9; ++n) { char p[64]; snprintf(p, 64, "/box/collect-%d.safetensors", n); symlink("/tmp/x", p); }'
    source = SOURCE + SNEAKY.format(body=body).replace("{{", "{").replace("}}", "}")
    with ready_child(built(source, tmp_path)) as child:
        run(child)
        with pytest.raises(ChildProtocolError, match="cannot be read"):
            child.collect("a")


LATE = """
#include <thread>
#include <chrono>
extern "C" int32_t kb_late(void* h, int64_t position) {
    Handle* handle = static_cast<Handle*>(h);
    std::thread([=] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); kb_step_until(handle, position, -1); }).detach();
    return 0;
}
"""


def test_an_answer_computed_after_the_clock_stopped_is_not_the_answer(tmp_path: Path) -> None:
    """kb_step returns at once and works on: the copy made at return still holds the junk."""
    source = SOURCE.replace("int32_t kb_step(void* h, int64_t position) { return kb_step_until(h, position, -1); }", "")
    source += LATE.replace("kb_late", "kb_step")
    with ready_child(built(source, tmp_path)) as child:
        run(child)
        time.sleep(0.2)
        got = child.collect("a")
    assert bytes(got.outputs["hidden"][0]) != b"bcdef"
    assert bytes(got.tensors["hidden"].data) == b"bcdef", "it did come, too late"


def talker(answers: str) -> list[str]:
    """A command line that greets and then answers every line with a Python expression of `q`."""
    code = (
        "import sys, json\n"
        'print(json.dumps({"ok": True, "hello": "kernelbraid-child-1"}), flush=True)\n'
        f"for line in sys.stdin:\n    q = json.loads(line)\n    print({answers}, flush=True)\n"
    )
    return [sys._base_executable, "-I", "-S", "-c", code]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ('"not json"', "not JSON"),
        ('"[]"', "no 'ok'"),
        ("'{\"ok\": 1}'", "no 'ok'"),
        ('"[" * 100000', "not JSON"),
        ('json.dumps({"ok": True, "id": "guessed"})', "id"),
        ('json.dumps({"ok": True, "id": q["id"]}) * 2', "not JSON"),
        ('json.dumps({"ok": True, "id": q["id"]}) + "\\n{}"', "more follows"),
        ('json.dumps({"ok": True, "id": q["id"]})', "times"),
        ('json.dumps({"ok": True, "id": q["id"], "ns": [-5], "digest": "x"})', "nanoseconds"),
        ('"x" * (20 << 20)', "longer"),
    ],
)
def test_answers_outside_the_protocol_are_errors(answers: str, words: str) -> None:
    with (
        ChildProcess(probe_walls(), LIMITS, command=talker(answers)) as child,
        pytest.raises(ChildProtocolError, match=words),
    ):
        child.run_chain("a", steps=1, position=0)


def test_a_program_that_does_not_start_is_our_fault() -> None:
    with (
        pytest.raises(BoxError, match="no-such-program"),
        ChildProcess(probe_walls(), LIMITS, command=["/no-such-program"]),
    ):
        pass


def test_a_program_that_never_greets_is_given_up() -> None:
    silent = ChildProcess(probe_walls(), LIMITS, command=["/bin/sleep", "60"], start_timeout_s=0.3)
    with pytest.raises(ChildHung), silent:
        pass
    assert not silent.box.scratch.exists()
