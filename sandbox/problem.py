"""Problems: a folder under experiments/problems/, loaded as a package of its own name, at one of its sizes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import math
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import yaml
from filelock import FileLock
from pydantic import ValidationError

from sandbox.errors import ProblemError
from sandbox.graph import StageGraph
from sandbox.records import Frozen

PROBLEMS = Path(__file__).resolve().parent.parent / "experiments" / "problems"


def problem_folder(name: str) -> Path:
    """Folder of a problem by name or path."""
    for folder in (PROBLEMS / name, Path(name)):
        if (folder / "problem.yaml").is_file():
            return folder.resolve()
    known = sorted(p.parent.name for p in PROBLEMS.glob("*/problem.yaml"))
    raise ProblemError(f"no problem '{name}' (no problem.yaml there); the checkout has {known}")


class Baseline(Frozen):
    """A PyTorch implementation of the problem: class `cls` of a module of its package. `chain`: steps of a timed chain where
    a step takes so long that the candidate's chain length would only cost time."""

    module: str
    cls: str
    about: str = ""
    chain: int | None = None


class ProblemSpec(Frozen):
    """The problem.yaml: what is to be computed, at which sizes, under which rules."""

    name: str
    title: str
    sizes: dict[str, str]
    feed: dict[str, str]  # output -> input of the next step of a chain
    contract: Literal["step", "forward"] = "step"  # what a solution.py offers: Model.step(hidden, state) or Model.forward(inputs)
    contract_files: tuple[str, ...] = ("definition.py", "contract.py")  # shown to a solution's process, and nothing else of the package
    max_dispatches: int | None = None  # of our runtime's team, per step
    max_launches: int | None = None  # of a device, per step, by the profiler
    graphs: Literal["allowed", "denied"] = "allowed"
    verified_steps: dict[str, int] = {}  # size -> steps of a timed chain compared with the truth, where the whole chain takes too long
    baselines: dict[str, Baseline]
    plans: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """One problem at one size. Problem folders are trusted code of the checkout, never candidate code."""

    name: str
    size: str
    folder: Path

    @classmethod
    def load(cls, name: str, size: str) -> Problem:
        """Find the folder and check the size. Raises ProblemError with what there is instead."""
        folder = problem_folder(name)
        problem = cls(folder.name, size, folder)
        sizes = problem.module("definition").SIZES
        if size not in sizes:
            raise ProblemError(f"problem '{name}' has no size '{size}'; it has {sorted(sizes)}")
        return problem

    def module(self, name: str) -> ModuleType:
        """A module of the problem's package."""
        parent = str(self.folder.parent)
        if parent not in sys.path:
            sys.path.append(parent)
        return importlib.import_module(f"{self.folder.name}.{name}")

    @functools.cached_property
    def spec(self) -> ProblemSpec:
        """The problem.yaml. Raises ProblemError with what is wrong in it."""
        path = self.folder / "problem.yaml"
        try:
            return ProblemSpec.model_validate(yaml.safe_load(path.read_text()))
        except (ValidationError, yaml.YAMLError) as error:
            raise ProblemError(f"{path} is not a problem description: {error}") from error

    @functools.cached_property
    def dims(self) -> Any:
        """The sizes (the package's Dims)."""
        return self.module("definition").SIZES[self.size]

    @functools.cached_property
    def graph(self) -> StageGraph:
        """The stage graph at this size."""
        graph: StageGraph = self.module("graph").build_graph(self.dims)
        return graph

    @property
    def interface(self) -> ModuleType:
        """The package's `interface` module: starts, outputs, the truth of a chain."""
        return self.module("interface")

    @functools.cached_property
    def outputs(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """(torch dtype, shape) of every output of a step."""
        found: dict[str, tuple[Any, tuple[int, ...]]] = self.interface.outputs(self.dims)
        return found

    @functools.cached_property
    def output_bytes(self) -> dict[str, int]:
        """Bytes of every output of a step."""
        return {name: dtype.itemsize * math.prod(shape) for name, (dtype, shape) in self.outputs.items()}

    def contract_sources(self) -> dict[str, bytes]:
        """The files of the package that a solution's process needs."""
        return {name: (self.folder / name).read_bytes() for name in ("__init__.py", *self.spec.contract_files)}

    @property
    def context(self) -> int:
        """Cached rows before the step, as the problem is usually run."""
        return int(self.dims.context)

    def plan_file(self, name: str) -> Path:
        """A hand-written plan of the problem, by name or path."""
        for path in (self.folder / "plans" / f"{name}.yaml", Path(name)):
            if path.is_file():
                return path
        known = sorted(p.stem for p in (self.folder / "plans").glob("*.yaml"))
        raise ProblemError(f"no plan '{name}'; the problem has {known}")

    @functools.cached_property
    def drawing_hash(self) -> str:
        """Hash of the files that decide how weights are drawn: a cached file of another hash is another file."""
        digest = hashlib.sha256()
        for name in ("definition.py", "quant.py"):
            path = self.folder / name
            digest.update(path.read_bytes() if path.exists() else b"")
        return digest.hexdigest()[:12]

    @property
    def _weights_size(self) -> str:
        """The first size that differs from this one in its context alone: weights do not depend on it."""
        sizes: dict[str, Any] = self.module("definition").SIZES
        return next(name for name, dims in sizes.items() if dataclasses.replace(dims, context=self.context) == self.dims)

    def weights_file(self, cache: Path) -> Path:
        """Weights of this size, drawn once from a secret seed that nobody keeps, then cached (safetensors).

        The file is readable by its owner only; the box shows it read-only. `full` takes about a minute and 1.2 GB."""
        import torch
        from safetensors.torch import save_file

        folder = cache / "weights"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{self.name}-{self._weights_size}-{self.drawing_hash}.safetensors"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                weights = self.module("definition").make_weights(self.dims, secrets.randbits(62))
                partial = path.with_suffix(f".{os.getpid()}.tmp")
                save_file({k: v.contiguous() for k, v in weights.items()}, partial)
                partial.chmod(0o600)
                partial.rename(path)
                del weights, torch
        return path

    def load_weights(self, cache: Path) -> Mapping[str, Any]:
        """The weights as torch tensors, mapped from the cached file."""
        from safetensors.torch import load_file

        return dict(load_file(self.weights_file(cache)))
