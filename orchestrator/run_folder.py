"""The run folder: append-only files that hold all a run did."""

from __future__ import annotations

import datetime
import json
import secrets
from pathlib import Path
from typing import Any

from sandbox.evaluation import Evaluation, append
from sandbox.records import canonical_json


class RunFolder:
    """`events.jsonl`, `evaluations.jsonl` (hash-chained), `kernels/`, `settings.json`, `summary.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        (self.path / "kernels").mkdir(parents=True, exist_ok=True)

    @classmethod
    def new(cls, root: Path, name: str) -> RunFolder:
        """A fresh folder under `root`, named by time so that names sort."""
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
        return cls(root / f"{stamp}-{name}-{secrets.token_hex(2)}")

    @property
    def evaluations(self) -> Path:
        """The chained record of every judgement."""
        return self.path / "evaluations.jsonl"

    def event(self, event: str, /, **fields: Any) -> None:
        """Append one event (noun.verb) with its fields, flushed."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        with (self.path / "events.jsonl").open("a") as f:
            f.write(canonical_json({"at": now, "event": event, **fields}) + "\n")
            f.flush()

    def record(self, evaluation: Evaluation) -> Evaluation:
        """Append an evaluation to the chain."""
        return append(self.evaluations, evaluation)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the run, whole or not at all."""
        path = self.path / name
        partial = path.with_suffix(path.suffix + ".partial")
        partial.write_text(text)
        partial.rename(path)
        return path

    def write_json(self, name: str, value: Any) -> Path:
        """Write a JSON file of the run, indented for people."""
        return self.write(name, json.dumps(value, indent=2, sort_keys=True) + "\n")
