"""JSON schemas of the public records: `python -m sandbox.schemas docs/schemas` writes them, a test holds them current."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import BaseModel

from sandbox.candidate import Candidate, Implementation
from sandbox.evaluation import Environment, Evaluation
from sandbox.graph import StageGraph
from sandbox.plan import Plan
from sandbox.problem import ProblemSpec

RECORDS: tuple[type[BaseModel], ...] = (ProblemSpec, StageGraph, Plan, Implementation, Candidate, Environment, Evaluation)


def schemas() -> dict[str, str]:
    """File name -> schema text."""
    return {f"{r.__name__}.json": json.dumps(r.model_json_schema(), indent=1, sort_keys=True) + "\n" for r in RECORDS}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text)
