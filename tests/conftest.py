"""Shared fixtures: one judge for all tests, with a private cache that lives as long as the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.judge import Judge


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """A judge behind the strongest walls of this machine, on at most two threads."""
    yield Judge(tmp_path_factory.mktemp("cache"), threads=2)


@pytest.fixture
def repo() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent
