"""What compute-sanitizer and ncu print, as closed results. The texts are ours, in the tools' form."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.device_box import BoxView
from sandbox.isolation import Limits, open_box
from sandbox.profile_box import Profile, parse_profile, profile
from sandbox.sanitizer import FOUND_EXIT, Check, Sanitized, parse_sanitizer, sanitize
from sandbox.walls import probe_walls

HEAD = "========= COMPUTE-SANITIZER\n"
WRITE = (
    HEAD
    + """========= Invalid __global__ write of size 4 bytes
=========     at spill(int *)+0x90
=========     by thread (96,0,0) in block (3,0,0)
=========     Access at 0x7f0000000600 is out of bounds
=========
========= ERROR SUMMARY: 128 errors
========= ERROR SUMMARY: 28 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
)
RACE = (
    HEAD
    + """========= Error: Race reported between Write access at mix(int *)+0x40
=========     and Read access at mix(int *)+0x80 [64 hazards]
=========
========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)
"""
)
LIMITS = Limits(wall_s=10, cpu_s=10, memory_bytes=256 << 20, processes=16, output_bytes=64 << 10)


def test_a_clean_summary_of_a_program_that_ended_well_is_clean() -> None:
    found = parse_sanitizer("memcheck", HEAD + "========= ERROR SUMMARY: 0 errors\n", 0)
    assert found == Sanitized(check="memcheck", outcome="clean")
    races = parse_sanitizer("racecheck", HEAD + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", 0)
    assert races.outcome == "clean"


def test_errors_are_counted_once_and_shown() -> None:
    found = parse_sanitizer("memcheck", WRITE, FOUND_EXIT)
    assert (found.outcome, found.errors) == ("errors", 128), "the second line counts the same errors"
    assert found.first[0] == "Invalid __global__ write of size 4 bytes"
    races = parse_sanitizer("racecheck", RACE, FOUND_EXIT)
    assert (races.outcome, races.errors, races.warnings) == ("errors", 2, 1)
    assert "Race reported" in races.first[0]


def test_processes_of_one_program_are_summed() -> None:
    assert (
        parse_sanitizer("synccheck", HEAD + "========= ERROR SUMMARY: 1 error\n========= ERROR SUMMARY: 2 errors\n", FOUND_EXIT).errors == 3
    )


@pytest.mark.parametrize(("check", "log", "code", "words"), [
    ("memcheck", HEAD + "========= Error: Device not supported. See the documentation\n========= ERROR SUMMARY: 1 error\n", FOUND_EXIT, "Device not supported"),
    ("memcheck", HEAD + "========= Error: Target application terminated before first instrumented API call\n========= ERROR SUMMARY: 0 errors\n", 0, "first instrumented"),
    ("memcheck", HEAD + "========= Internal Sanitizer Error: something\n========= ERROR SUMMARY: 0 errors\n", 0, "did not see the whole"),
    ("memcheck", HEAD, 0, "no summary"),
    ("memcheck", "", 0, "no summary"),
    ("memcheck", "ERROR SUMMARY: 0 errors\n", 0, "no summary"),  # the program's own words
    ("racecheck", HEAD + "========= ERROR SUMMARY: 0 errors\n", 0, "no summary"),
    ("memcheck", HEAD + "========= ERROR SUMMARY: 0 errors\n", 3, "exit code 3"),
    ("memcheck", HEAD + "========= ERROR SUMMARY: 0 errors\n", None, "exit code None"),
])  # fmt: skip
def test_nothing_else_is_clean(check: Check, log: str, code: int | None, words: str) -> None:
    found = parse_sanitizer(check, log, code)
    assert found.outcome == "unavailable"
    assert words in found.reason


@pytest.mark.parametrize(
    "fields", [{"outcome": "clean", "errors": 1}, {"outcome": "errors"}, {"outcome": "unavailable"}, {"outcome": "clean", "reason": "x"}]
)
def test_a_contradiction_cannot_be_built(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Sanitized.model_validate({"check": "memcheck", **fields})


@pytest.mark.parametrize("fields", [{}, {"kernels": {"k": {}}, "unavailable": "x", "launches": {"k": 1}}, {"kernels": {"k": {}}}])
def test_a_profile_without_a_reason_or_launches_cannot_be_built(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Profile.model_validate(fields)


TABLE = """==PROF== Connected to process 7 (/prog/run)
==PROF== Profiling "axpy" - 0: 0%....50%....100% - 2 passes
==PROF== Disconnected from process 7
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes_read.sum","gpu__time_duration.sum"
"","","","","","","","","","","","byte","ns"
"0","7","run","127.0.0.1","axpy(float *, int)","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0","1,048,576","2,000"
"1","7","run","127.0.0.1","axpy(float *, int)","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0","1,048,578","4,000"
"2","7","run","127.0.0.1","fill(float *)","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0","n/a","1,500.5"
"""
METRICS = ["dram__bytes_read.sum", "gpu__time_duration.sum"]


def test_a_table_is_means_by_kernel_and_metric() -> None:
    found = parse_profile(TABLE, METRICS)
    assert found.kernels == {
        "axpy(float *, int)": {"dram__bytes_read.sum": 1048577.0, "gpu__time_duration.sum": 3000.0},
        "fill(float *)": {"gpu__time_duration.sum": 1500.5},
    }
    assert found.launches == {"axpy(float *, int)": 2, "fill(float *)": 1}
    assert found.units == {"dram__bytes_read.sum": "byte", "gpu__time_duration.sum": "ns"}


@pytest.mark.parametrize(("log", "code", "words"), [
    ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", 1, "NVreg_RestrictProfilingToAdminUsers"),
    ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", 1, "finds no driver"),
    ("==WARNING== No kernels were profiled.\n", 0, "launched no kernel"),
    (TABLE + "==ERROR== The application returned an error code (11).\n", 11, "error code (11)"),
    (TABLE, 1, "did not end well"),
    (TABLE.replace('"Kernel Name"', '"Function"'), 0, "without 'Kernel Name'"),
    (TABLE.replace("1,048,576", "n/a").replace("1,048,578", "n/a"), 0, "no value for dram__bytes_read.sum"),
    ("", 127, "exit code 127"),
])  # fmt: skip
def test_no_counters_have_a_reason(log: str, code: int, words: str) -> None:
    found = parse_profile(log, METRICS, code)
    assert not found.kernels
    assert words in found.unavailable


# -- a script in the tool's place, in a real box --------------------------------------------------------------------

SCRIPT = """#!/bin/sh
log=; while [ "$1" != /bin/true ] && [ "$1" != /bin/sleep ]; do [ "$1" = --log-file ] && log=$2; shift; done
[ -n "$log" ] || exit 5
{body}
"""


def tool(folder: Path, body: str) -> BoxView:
    folder.chmod(0o755)
    path = folder / "tool"
    path.write_text(SCRIPT.format(body=body))
    path.chmod(0o755)
    return BoxView((), (), ((folder, "/tools"),), {}, "/tools/tool")


def test_a_tools_log_comes_out_of_the_box(tmp_path: Path) -> None:
    text = "printf '========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: 2 errors\\n' > $log; \"$@\"; exit 86"
    view = tool(tmp_path, text)
    with open_box(LIMITS, probe_walls(), view.readonly) as box:
        found = sanitize(box, view, ["/bin/true"], check="memcheck")
    assert (found.outcome, found.errors) == ("errors", 2)
    (tmp_path / "table").write_text(TABLE)
    view = tool(tmp_path, 'cat /tools/table > "$log"; exec "$@"')
    with open_box(LIMITS, probe_walls(), view.readonly) as box:
        assert profile(box, view, ["/bin/true"], METRICS, launches=3).launches["fill(float *)"] == 1


def test_no_tool_no_log_and_no_end_are_unavailable(tmp_path: Path) -> None:
    with open_box(LIMITS, probe_walls()) as box:
        none = BoxView((), ())
        assert "has no compute-sanitizer" in sanitize(box, none, ["/bin/true"]).reason
        assert "has no ncu" in profile(box, none, ["/bin/true"], METRICS).unavailable
    view = tool(tmp_path, "echo cannot start >&2; exit 4")
    with open_box(LIMITS, probe_walls(), view.readonly) as box:
        assert "left no log (exit code 4): cannot start" in sanitize(box, view, ["/bin/true"]).reason
        assert "cannot start" in profile(box, view, ["/bin/true"], METRICS).unavailable
    view = tool(tmp_path, 'exec "$@"')
    with open_box(Limits(wall_s=0.5, processes=16), probe_walls(), view.readonly) as box:
        assert "wall limit" in sanitize(box, view, ["/bin/sleep", "20"]).reason
