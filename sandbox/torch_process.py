"""The parent's side of a PyTorch child: a problem's baseline, or somebody's solution.py (see torch_child.py)."""

from __future__ import annotations

import binascii
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Self

import numpy as np

from sandbox.box_errors import BoxError
from sandbox.child_process import ChildProcess
from sandbox.isolation import Limits
from sandbox.walls import Walls

SOLUTION = "solution.py"
PAD_BYTES = 4096
BUILT = "built"  # in the scratch folder: where compilers of a solution put what they make
MAX_BUILT = 512 << 20  # bytes
# Compilers that solutions use at import or at the first call, and the variable that says where each keeps what it made.
CACHES = {"TORCH_EXTENSIONS_DIR": "torch", "TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "cuda", "TORCHINDUCTOR_CACHE_DIR": "inductor"}


class TorchProcess(ChildProcess):
    """A child that runs PyTorch. Make it with `for_baseline` or `for_solution`, then call `load_torch`."""

    _package: Path | None = None
    _solution = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pads: dict[str, bytes] = {}

    def _sealed(self, slot: str, data: bytes) -> bytes:
        """Python code of a candidate could hook the child and work on the state before the clock runs, so every tensor is under a secret
        pad until then. Lifting it takes a chain a moment, once, and everybody the same."""
        pad = self._pads[slot] = secrets.token_bytes(PAD_BYTES)
        length = int.from_bytes(data[:8], "little")
        header, out = json.loads(data[8 : 8 + length]), bytearray(data)
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                part = np.frombuffer(data, np.uint8, end - begin, begin)
                out[begin:end] = (part ^ np.resize(np.frombuffer(pad, np.uint8), part.size)).tobytes() if part.size else b""
        return bytes(out)

    def _unlocking(self, slot: str) -> dict[str, Any]:
        return {"unlock": binascii.b2a_base64(self._pads[slot], newline=False).decode()}

    @classmethod
    def for_baseline(cls, walls: Walls, limits: Limits, *, problem: Path, weights: Sequence[Path], threads: int, **options: Any) -> Self:
        """A child for a trusted implementation of a problem package."""
        child = cls._torch(walls, limits, [(problem, f"/problems/{problem.name}")], weights, threads, options)
        child._package = problem
        return child

    @classmethod
    def for_solution(cls, walls: Walls, limits: Limits, *, name: str, package: Mapping[str, bytes], sources: Mapping[str, str],
                     built: Path | None, weights: Sequence[Path], threads: int, **options: Any) -> Self:  # fmt: skip
        """A child for somebody's solution.py.

        package: the files of problem `name` that the contract needs, and no others: the candidate can read them. sources: solution.py
        and the files beside it. built: what compilers left when the solution was built; every box gets a copy of its own.
        """
        child = cls._torch(walls, limits, [], weights, threads, options)
        try:
            for path, data in package.items():
                child.box.put(f"problems/{name}/{path}", data)
            for path, text in sources.items():
                child.box.put(f"solution/{path}", text.encode())
            target = child.box.scratch / BUILT
            if built is not None:
                shutil.copytree(built, target)
            for folder in CACHES.values():
                (target / folder).mkdir(parents=True, exist_ok=True)
            _open_up(target)
        except BaseException:
            child.close()
            raise
        child._package = child.box.inbox / "problems" / name
        child._solution = child.box.inside(child.box.inbox / "solution" / SOLUTION)
        return child

    @classmethod
    def _torch(cls, walls: Walls, limits: Limits, binds: list[tuple[Path, str]], weights: Sequence[Path], threads: int,
               options: dict[str, Any]) -> Self:  # fmt: skip
        shown = [(path, f"/data/{number}/{path.name}") for number, path in enumerate(weights)]
        environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        environment.update(options.pop("environment", None) or {})
        shown += options.pop("readonly", [])
        child = cls(walls, limits, program="torch_child", packages=True, readonly=[*binds, *shown], environment=environment, **options)
        child.weights = list(weights)
        return child

    def load_torch(self, *, size: str | Mapping[str, Any], threads: int, inputs: Sequence[str], outputs: Mapping[str, tuple[str, Sequence[int]]],
                   module: str = "", name: str = "", device: str = "cpu", timeout: float | None = None) -> float:  # fmt: skip
        """Make `name`(dims, weights) of the package's `module`, or the solution's model; seconds it took.

        outputs: {name: (safetensors dtype, shape)}.
        """
        if self._package is None:
            raise BoxError("this child has no package; make it with TorchProcess.for_baseline or for_solution")
        package = self.box.inside(self._package) if self._solution else self._data(self._package)
        fields = {
            "folder": str(PurePath(package).parent), "package": self._package.name, "module": module, "name": name,
            "solution": self._solution, "size": size, "threads": threads, "device": device, "inputs": list(inputs),
            "outputs": {key: [dtype, list(shape)] for key, (dtype, shape) in outputs.items()},
            "weights": [self._data(path) for path in self.weights],
            "caches": {variable: self.box.inside(self.box.scratch / BUILT / folder) for variable, folder in CACHES.items()},
        }  # fmt: skip
        return self._wire.exchange("load", timeout, fields)[1] / 1e9

    def keep_built(self, folder: Path) -> None:
        """Copy what the compilers made out of the box: plain files only, so many bytes at most. End the child first."""
        total, source = 0, self.box.scratch / BUILT
        for here, _, names in os.walk(source):  # links are not followed
            for file in names:
                path = Path(here) / file
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                total += status.st_size
                if total > MAX_BUILT:
                    raise BoxError(f"building left more than {MAX_BUILT >> 20} MB: have it make less")
                target = folder / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with open(fd, "rb") as made, target.open("wb") as kept:  # noqa: PTH123
                    shutil.copyfileobj(made, kept)
                target.chmod(0o755 if status.st_mode & 0o100 else 0o644)
                os.utime(target, (status.st_mtime, status.st_mtime))  # ninja compares times


def _open_up(folder: Path) -> None:
    """The box may run under another uid: it must be able to write what we put there."""
    for here, folders, names in os.walk(folder):
        Path(here).chmod(0o777)
        for name in names:
            path = Path(here) / name
            path.chmod(path.stat().st_mode | 0o666)
        del folders
