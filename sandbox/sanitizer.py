"""A program under compute-sanitizer, in a box: clean, so many errors, or nothing is known and why.

    view = with_tool(view_of(device), TOOL)
    with open_box(limits, walls, [*view.readonly, (folder, "/prog")], environment=view.environment, devices=view.devices) as box:
        seen = sanitize(box, view, ["/prog/kernel"], check="memcheck")

It helps to find mistakes; it is no evidence against a hostile program, which can write whatever its tools can.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Literal

from pydantic import model_validator

from sandbox.box_errors import BoxError
from sandbox.device_box import BoxView
from sandbox.isolation import Box, BoxReport
from sandbox.records import Frozen

TOOL = "compute-sanitizer"
FOUND_EXIT = 86  # what the tool exits with if it found errors
SHOWN_LINES = 12
_MAX_LOG = 4 << 20
_MARK = "========="
_RACES = re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors?$")  # another such line counts those that were not printed
# The tool does not work here, whatever else it says; and it worked, but did not see all.
_NO_TOOL = ("Device not supported", "No attachable process found")
_NOT_ALL = ("Internal Sanitizer Error", "before first instrumented API call")

Check = Literal["memcheck", "racecheck", "synccheck"]


class Sanitized(Frozen):
    """errors and warnings: as the tool counts them. first: its first lines on them. reason: why nothing is known."""

    check: Check
    outcome: Literal["clean", "errors", "unavailable"]
    errors: int = 0
    warnings: int = 0
    first: tuple[str, ...] = ()
    reason: str = ""

    @model_validator(mode="after")
    def _agrees(self) -> Sanitized:
        if (self.errors > 0) != (self.outcome == "errors") or bool(self.reason) != (self.outcome == "unavailable"):
            raise ValueError("a result has errors, or a reason why it is unavailable, or neither and is clean")
        return self


def command_line(tool: str, check: Check, log: str, command: Sequence[str]) -> list[str]:
    """The tool around a command. Failed calls of the CUDA interface are not counted: programs probe with them."""
    options = ["--tool", check, "--error-exitcode", str(FOUND_EXIT), "--target-processes", "all", "--log-file", log]
    if check == "memcheck":
        options += ["--report-api-errors", "no"]
    return [tool, *options, *command]


def parse_sanitizer(check: Check, log: str, exit_code: int | None) -> Sanitized:
    """What a log of the tool says. Clean only if its summary counts no error and the program ended well."""
    lines = [line[len(_MARK) :].strip() for line in log.splitlines() if line.startswith(_MARK)]
    said = [line for line in lines if line and line != "COMPUTE-SANITIZER"]

    def unknown(reason: str) -> Sanitized:
        return Sanitized(check=check, outcome="unavailable", reason=reason, first=tuple(said[:SHOWN_LINES]))

    if broken := _first_with(said, _NO_TOOL):
        return unknown(f"{TOOL} does not work here: {broken}")
    pattern = _RACES if check == "racecheck" else _ERRORS
    totals = [found for line in said if (found := pattern.search(line))]
    errors = sum(int(total[1]) for total in totals)
    warnings = sum(int(total[2]) for total in totals) if check == "racecheck" else 0
    if errors:
        return Sanitized(check=check, outcome="errors", errors=errors, warnings=warnings, first=tuple(said[:SHOWN_LINES]))
    if broken := _first_with(said, _NOT_ALL):
        return unknown(f"{TOOL} did not see the whole program: {broken}")
    if not totals:
        return unknown(f"{TOOL} gave no summary: {said[-1] if said else 'it said nothing'}")
    if exit_code != 0:
        return unknown(f"no error was counted, but the program did not end well (exit code {exit_code})")
    return Sanitized(check=check, outcome="clean", warnings=warnings, first=tuple(said[:SHOWN_LINES]) if warnings else ())


def _first_with(lines: Sequence[str], words: Sequence[str]) -> str:
    return next((line[:300] for line in lines if any(word in line for word in words)), "")


def sanitize(box: Box, view: BoxView, command: Sequence[str], *, check: Check = "memcheck") -> Sanitized:
    """Run a command of an open box, made after this view, under one of the tool's checks."""
    if not view.tool:
        return Sanitized(check=check, outcome="unavailable", reason=f"this machine has no {TOOL}; install the CUDA toolkit's")
    name = f"sanitizer-{secrets.token_hex(4)}.log"
    result = box.run(command_line(view.tool, check, box.inside(box.scratch / name), command))
    if (why := ended_early(result.report)) is not None:
        return Sanitized(check=check, outcome="unavailable", reason=f"{check} {why}")
    try:
        log = box.read_back(name, _MAX_LOG).decode(errors="replace")
    except BoxError:
        words = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
        last = words[-1][:300] if words else "no word"
        return Sanitized(check=check, outcome="unavailable", reason=f"{TOOL} left no log (exit code {result.report.exit_code}): {last}")
    return parse_sanitizer(check, log, result.report.exit_code)


def ended_early(report: BoxReport) -> str | None:
    """Why a tool's run in a box says nothing: a limit or a signal ended it."""
    if report.limit is not None:
        return f"hit the box's {report.limit} limit after {report.wall_s:.0f} s; give it more, or a smaller problem"
    return f"was ended by {report.signal}" if report.signal else None
