"""A tiny candidate, its case, and children for it: shared by the tests of the child."""

from __future__ import annotations

import functools
import json
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandbox.child_process import ChildProcess
from sandbox.compiler import compile_cpu, host_flags
from sandbox.isolation import Limits
from sandbox.walls import Walls, probe_walls

LIMITS = Limits(wall_s=30, cpu_s=20, memory_bytes=256 << 20, processes=16, file_bytes=32 << 20, output_bytes=64 << 10)
SOURCE = (Path(__file__).parent / "tiny_candidate.cpp").read_text()
TOKEN = b"abcde"


def tensor_file(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


CASE = tensor_file({"token": ("U8", [5], TOKEN), "S": ("I64", [1], bytes(8))})


@functools.cache
def _cache() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kernelbraid-test-")


def library(mischief: int) -> Path:
    """The tiny candidate with one of its mischiefs (0: none)."""
    flags = (*host_flags(), "-O1", f"-DMISCHIEF={mischief}")
    return compile_cpu(SOURCE, flags=flags, cache_dir=Path(_cache().name), walls=probe_walls()).path


def built(source: str, cache: Path) -> Path:
    """Any other source as a library."""
    return compile_cpu(source, flags=host_flags(), cache_dir=cache, walls=probe_walls()).path


def child_of(path: Path, weights: list[Path] | None = None, walls: Walls | None = None, **limits: Any) -> ChildProcess:
    """A child for the library; limits replace fields of LIMITS."""
    settled = Limits(**{**LIMITS.__dict__, **limits})
    return ChildProcess.for_library(walls or probe_walls(), settled, library=path, weights=weights or [])


def ready(child: ChildProcess) -> ChildProcess:
    """Loaded, with slot a prepared."""
    child.load(threads=1, max_position=100)
    child.prepare("a", CASE, {"hidden": 5}, junk_seed=1)
    return child


@contextmanager
def ready_child(path: Path, weights: list[Path] | None = None, **limits: Any) -> Iterator[ChildProcess]:
    """A running child, ready to run chains."""
    with child_of(path, weights, **limits) as child:
        yield ready(child)


def run(child: ChildProcess, timeout: float = 5.0) -> None:
    child.run_chain("a", steps=1, position=1, timeout=timeout)
