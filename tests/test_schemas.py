"""The committed schemas are those of the records."""

from __future__ import annotations

from pathlib import Path

from sandbox.schemas import schemas


def test_schemas_are_current(repo: Path) -> None:
    for name, text in schemas().items():
        assert (repo / "docs" / "schemas" / name).read_text() == text, "run: python -m sandbox.schemas docs/schemas"
