"""Hardware counters of a program's kernels by ncu, in a box of their own. A help for whoever tunes; never a verdict.

    view = with_tool(view_of(device), TOOL)
    with open_box(limits, walls, [*view.readonly, (folder, "/prog")], environment=view.environment, devices=view.devices) as box:
        seen = profile(box, view, ["/prog/kernel"], ["gpu__time_duration.sum", "dram__bytes_read.sum"])

Clocks are left as they are. Where the driver keeps counters for administrators, a box has no right to read them, and says so.
"""

from __future__ import annotations

import csv
import secrets
import statistics
from collections.abc import Sequence

from pydantic import model_validator

from sandbox.box_errors import BoxError
from sandbox.device_box import BoxView
from sandbox.isolation import Box
from sandbox.records import Frozen
from sandbox.sanitizer import ended_early

TOOL = "ncu"
_MAX_LOG = 32 << 20
_ID, _KERNEL, _LAST_FIXED = "ID", "Kernel Name", "CC"
_ADVICE = {
    "ERR_NVGPUCTRPERM": "the driver keeps counters for administrators; set NVreg_RestrictProfilingToAdminUsers=0 for its module",
    "LibraryNotLoaded": "the profiler's library finds no driver that lets it read counters (a sandboxed kernel, or no driver folder shown)",
    "No kernels were profiled": "the program launched no kernel on the device",
}


class Profile(Frozen):
    """{kernel: {metric: mean over its launches}} in base units, or `unavailable`: why there is none. No kernel, no metrics."""

    kernels: dict[str, dict[str, float]] = {}
    launches: dict[str, int] = {}
    units: dict[str, str] = {}
    unavailable: str = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> Profile:
        if bool(self.kernels) == bool(self.unavailable) or set(self.kernels) != set(self.launches):
            raise ValueError("a profile has kernels with their launches, or a reason why it has none")
        return self


def command_line(tool: str, metrics: Sequence[str], log: str, command: Sequence[str], launches: int | None) -> list[str]:
    """ncu around a command. It replays every kernel as often as the metrics need; launches: at most so many are profiled."""
    argv = [tool, "--config-file", "off", "--clock-control", "none", "--target-processes", "all"]
    argv += ["--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics), "--log-file", log]
    if launches is not None:
        argv += ["--launch-count", str(launches)]
    return [*argv, *command]


def parse_profile(log: str, metrics: Sequence[str], exit_code: int | None = 0) -> Profile:
    """The raw page as CSV: a line of names, a line of units, a line per launch, with ncu's own words around them."""
    lines = log.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(f'"{_ID}",')), None)
    complaints = [line for line in lines if line.startswith("==ERROR==")]
    warnings = [line for line in lines if line.startswith("==WARNING==")]
    if start is None or complaints:
        said = (complaints or warnings or [line for line in lines if line.strip()] or ["it said nothing"])[0][:300]
        advice = next((text for word, text in _ADVICE.items() if any(word in line for line in (*complaints, *warnings))), "")
        return Profile(unavailable=f"{TOOL} gave no counters (exit code {exit_code}): {said}{'; ' + advice if advice else ''}")
    rows = [row for row in csv.reader(line for line in lines[start:] if line.startswith('"')) if row]
    names = rows[0]
    if _KERNEL not in names or _LAST_FIXED not in names:
        return Profile(unavailable=f"{TOOL} wrote a table without '{_KERNEL}' and '{_LAST_FIXED}'; its version is not known here")
    first, kernel_at = names.index(_LAST_FIXED) + 1, names.index(_KERNEL)
    values: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, int] = {}
    units: dict[str, str] = {}
    for row in rows[1:]:
        if len(row) != len(names):
            continue
        if not row[0]:
            units = {name: unit for name, unit in zip(names[first:], row[first:], strict=True) if unit}
            continue
        seen = values.setdefault(row[kernel_at], {})
        counts[row[kernel_at]] = counts.get(row[kernel_at], 0) + 1
        for name, text in zip(names[first:], row[first:], strict=True):
            number = _number(text)
            if number is not None:
                seen.setdefault(name, []).append(number)
    kernels = {kernel: {name: statistics.fmean(found) for name, found in seen.items()} for kernel, seen in values.items()}
    lacking = sorted(metric for metric in metrics if not any(metric in seen for seen in kernels.values()))
    if not kernels or lacking:
        return Profile(unavailable=f"{TOOL} gave no value for {', '.join(lacking) or 'any kernel'}: this device may not count it")
    if exit_code != 0:
        return Profile(unavailable=f"the program did not end well under {TOOL} (exit code {exit_code})")
    return Profile(kernels=kernels, launches=counts, units=units)


def _number(text: str) -> float | None:
    """A value with or without commas at the thousands; None for "n/a" and words."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def profile(box: Box, view: BoxView, command: Sequence[str], metrics: Sequence[str], *, launches: int | None = None) -> Profile:
    """Run a command of an open box, made after this view, under ncu."""
    if not view.tool:
        return Profile(unavailable=f"this machine has no {TOOL}; install Nsight Compute")
    name = f"profile-{secrets.token_hex(4)}.csv"
    result = box.run(command_line(view.tool, metrics, box.inside(box.scratch / name), command, launches))
    if (why := ended_early(result.report)) is not None:
        return Profile(unavailable=f"{TOOL} {why}")
    try:
        log = box.read_back(name, _MAX_LOG).decode(errors="replace")
    except BoxError:
        log = (result.stderr + b"\n" + result.stdout).decode(errors="replace")
        log = "\n".join(line for line in log.splitlines() if not line.startswith('"'))  # the program's own words are no table
    return parse_profile(log, metrics, result.report.exit_code)
