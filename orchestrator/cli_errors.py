"""What the command line says when something goes wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from sandbox.errors import KernelbraidError


@contextmanager
def plain_errors(console: Console | None = None, hint: str = "") -> Iterator[None]:
    """A user's mistake or a missing part of the machine is one sentence on stderr and exit 2, not a traceback.

    hint: what to do about files and folders that cannot be used.
    """
    try:
        yield
    except (KernelbraidError, OSError) as error:
        more = f"; {hint}" if hint and isinstance(error, OSError) else ""
        console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"error: {clean(str(error))}{more}", style="red", markup=False)
        raise typer.Exit(2) from None


def clean(text: str) -> str:
    """Text of other people's files without what would steer a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)
