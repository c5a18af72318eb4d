"""Old lines of the memory file, brought to today's version one numbered step at a time. Lines on disk are never rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memory.trick import VERSION
from sandbox.errors import RecordError

Line = dict[str, Any]


def _1_to_2(line: Line) -> Line:
    """Version 1 knew tricks only, without hardware, toolchain, change and sources; its kind `knob` is now `implementation`."""
    kind = line.get("kind")
    return {"record": "trick", **line, "kind": "implementation" if kind == "knob" else kind}


MIGRATIONS: dict[int, Callable[[Line], Line]] = {1: _1_to_2}


def migrate(line: Line) -> Line:
    """A line of any version as one of VERSION. Raises RecordError for a version that this program does not know."""
    version = line.get("version", 1)
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise RecordError(f"the record has version {version!r}, this program knows 1 to {VERSION}; use a newer kernelbraid")
    for number in range(version, VERSION):
        line = MIGRATIONS[number](line) | {"version": number + 1}
    return line
