"""The mark of the tests that judge hostile candidates."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "redteam: judges hostile candidates, some seconds each; leave out with -m 'not redteam'")
