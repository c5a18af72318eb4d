"""The parent's side of a child: start it in a box, give it work, time it from outside, take its bytes.

with ChildProcess.for_library(walls, limits, library=so, weights=[path]) as child:
    child.load(threads=2, max_position=2048)
    child.prepare("a", case_bytes, outputs={"hidden": 4608}, junk_seed=7)
    times = child.run_chain("a", steps=8, position=2048, feed={"hidden": "token"}, fresh={"token": token})
    tensors = child.collect("a")
"""

from __future__ import annotations

import binascii
import functools
import py_compile
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import cache_from_source
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sandbox.box_errors import BoxError, ChildProtocolError
from sandbox.box_python import open_to_all, python_command
from sandbox.child_wire import Wire
from sandbox.isolation import Box, BoxReport, Limits, open_box
from sandbox.raw_tensors import RawTensor, parse_tensors
from sandbox.walls import Level, Walls

_HERE = Path(__file__).resolve().parent
_SOURCES = ("child.py", "child_memory.py", "child_serving.py", "torch_child.py")
_HEADER_ROOM = 4 << 20


@dataclass(frozen=True)
class ChainTimes:
    """One timed chain. outside_ns is the parent's clock around it, inside_ns the child's own, per step.

    device_ns: between device events around the whole chain; launches: by kind or kernel name, in the whole chain. Both are
    what the child says."""

    outside_ns: int
    inside_ns: tuple[int, ...]
    digest: str
    device_ns: int | None = None
    launches: Mapping[str, int] | None = None

    @property
    def seconds(self) -> float:
        """By the parent's clock."""
        return self.outside_ns / 1e9


@dataclass(frozen=True)
class Collected:
    """`outputs`: one entry per step. `tensors`: all that were bound. `overruns`: those written past their end."""

    outputs: dict[str, list[memoryview]]
    tensors: dict[str, RawTensor]
    overruns: tuple[str, ...]


@functools.cache
def _compiled(name: str) -> bytes:
    """Bytecode of a source of this package (saves 10 ms a start); another Python in the box ignores it."""
    with tempfile.TemporaryDirectory(prefix="kernelbraid-pyc-") as folder:
        made = Path(folder) / "made.pyc"
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(_HERE / name), str(made), doraise=True, invalidation_mode=mode)
        return made.read_bytes()


class ChildProcess:
    """A program in a box that speaks the protocol. Any failure but a refusal ends it for good."""

    def __init__(
        self,
        walls: Walls,
        limits: Limits,
        *,
        program: str = "child",
        packages: bool = False,
        command: Sequence[str] | None = None,
        readonly: Sequence[tuple[Path, str]] = (),
        environment: Mapping[str, str] | None = None,
        scratch: Path | None = None,
        devices: Sequence[Path] = (),
        start_timeout_s: float = 30.0,
    ) -> None:
        """program: a module of this package whose main() serves; packages: with the virtual environment.

        command: instead of it, the whole command line of any trusted program that speaks the protocol.
        readonly, environment, scratch, devices: see Box. wall_s of the limits spans the child's whole life, and
        cpu_s all its threads.
        """
        python, binds = python_command(walls, packages=packages)
        self._wire = Wire(open_box(limits, walls, [*binds, *readonly], scratch, environment, devices))
        self._start_timeout_s = start_timeout_s
        self._python = [python, "-I"] if packages else [python, "-I", "-S"]
        self._program, self._command = program, command
        self._cases: dict[str, tuple[dict[str, RawTensor], dict[str, int], dict[str, int]]] = {}
        self._digests: dict[str, tuple[str, int]] = {}
        self._files = 0
        self.library: Path | None = None
        self.weights: list[Path] = []

    @classmethod
    def for_library(cls, walls: Walls, limits: Limits, *, library: Path, weights: Sequence[Path] = (), **options: Any) -> ChildProcess:
        """A child for one compiled candidate; library and weights are read-only to it. Then call `load`."""
        shown = [library, *weights]
        binds = [(path, f"/data/{number}/{path.name}") for number, path in enumerate(shown)]
        child = cls(walls, limits, readonly=[*binds, *options.pop("readonly", ())], **options)
        child.library, child.weights = library, list(weights)
        return child

    def __enter__(self) -> Self:
        try:
            self._wire.start(self._command or self._own_command(), self._start_timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child and all it started, and remove its box."""
        self._wire.close()

    def _own_command(self) -> list[str]:
        """Our program, put into the inbox together with its bytecode."""
        for name in _SOURCES:
            self.box.put(f"kb/sandbox/{name}", (_HERE / name).read_bytes())
            self.box.put(cache_from_source(f"kb/sandbox/{name}"), _compiled(name))
        path = self.box.inside(self.box.inbox / "kb")
        start = f"import sys; sys.path.insert(0, {path!r}); from sandbox.{self._program} import main; main()"
        return [*self._python, "-c", start]

    @property
    def box(self) -> Box:
        return self._wire.box

    @property
    def hello(self) -> dict[str, Any]:
        """The child's greeting."""
        return self._wire.hello

    @property
    def log(self) -> str:
        """What the child printed so far: the first and the last part of it."""
        return self._wire.log

    def report(self) -> BoxReport:
        """How the child ended, or what it has used so far; also after close."""
        return self.box.report()

    def call(self, do: str, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
        """Send one command and return its answer. timeout in seconds; the box's wall limit holds anyway."""
        return self._wire.exchange(do, timeout, fields)[0]

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """For code that takes an answer apart: whatever does not fit in it is the child's fault, never an exception of ours."""
        try:
            yield
        except (ValueError, KeyError, TypeError, IndexError, ArithmeticError, RecursionError, AttributeError) as error:
            raise self._wire.broken(f"the answer to '{what}' makes no sense: {type(error).__name__}: {str(error)[:300]}") from error

    @property
    def counts_dispatches(self) -> bool:
        """Whether the child's library counts the dispatches of our runtime's team."""
        return self.library is not None

    def dispatches(self, timeout: float | None = None) -> int:
        """Team dispatches so far, by the candidate's own count."""
        count = self.call("dispatches", timeout).get("count")
        if not isinstance(count, int) or not 0 <= count < 1 << 64:
            raise self._wire.broken(f"the answer to 'dispatches' is no count: {str(count)[:100]}")
        return count

    def _data(self, path: Path) -> str:
        """The name inside of a file shown to the child; copied where an own uid could not reach it."""
        if self.box.walls.level is Level.UID and path.is_file() and not open_to_all(path.resolve()):
            return self.box.put(f"data/{path.name}", path.read_bytes())
        return self.box.inside(path.resolve())

    def load(
        self,
        *,
        threads: int,
        max_position: int,
        cpus: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> float:
        """kb_create on the weights; seconds it took by the parent's clock."""
        if self.library is None:
            raise BoxError("this child has no library; make it with ChildProcess.for_library")
        fields = {
            "so": self._data(self.library),
            "weights": [self._data(path) for path in self.weights],
            "threads": threads,
            "cpus": list(cpus) if cpus is not None else None,
            "max_position": max_position,
        }
        return self._wire.exchange("load", timeout, fields)[1] / 1e9

    def prepare(
        self,
        slot: str,
        case: bytes | Path,
        outputs: Mapping[str, int],
        *,
        junk_seed: int | None = None,
        capacity_pad: Mapping[str, int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Bind fresh memory: inputs and states from a safetensors file, outputs {name: bytes} full of junk."""
        data = case if isinstance(case, bytes) else case.read_bytes()
        pads = dict(capacity_pad or {})
        self._cases[slot] = (parse_tensors(data), dict(outputs), pads)
        self._digests.pop(slot, None)
        self._files += 1
        name = f"case-{self._files}.safetensors"
        fields = {
            "slot": slot,
            "case": self.box.put(name, self._sealed(slot, data)),
            "outputs": dict(outputs),
            "junk_seed": secrets.randbits(32) if junk_seed is None else junk_seed,
            "capacity_pad": pads,
        }
        try:
            self.call("prepare", timeout, **fields)
        finally:
            (self.box.inbox / name).unlink(missing_ok=True)

    def _sealed(self, slot: str, data: bytes) -> bytes:
        """The case as the child gets it before the clock runs."""
        return data

    def _unlocking(self, slot: str) -> dict[str, Any]:
        """What a chain is told so that it can read its case."""
        return {}

    def run_chain(
        self,
        slot: str,
        *,
        steps: int,
        position: int,
        feed: Mapping[str, str] | None = None,
        fresh: Mapping[str, bytes] | None = None,
        stop_after: int | None = None,
        profile: bool = False,
        timeout: float | None = None,
    ) -> ChainTimes:
        """Run a chain of steps and time it from outside.

        feed copies outputs to inputs between steps. fresh {name: bytes} are inputs that the child first sees
        inside the timed span, so nothing can be computed ahead. profile: under the profiler, which counts launches.
        """
        fields: dict[str, Any] = {
            "slot": slot,
            "steps": steps,
            "position": position,
            "feed": dict(feed or {}),
            **self._unlocking(slot),
        }
        if fresh:
            given = {name: binascii.b2a_base64(value, newline=False).decode() for name, value in fresh.items()}
            fields["set"] = given
        if stop_after is not None:
            fields["stop_after"] = stop_after
        if profile:
            fields["profile"] = True
        reply, span = self._wire.exchange("run", timeout, fields)
        inside, digest = reply.get("ns"), reply.get("digest")
        if not isinstance(digest, str) or not isinstance(inside, list) or len(inside) != steps:
            raise self._wire.broken(f"the answer to 'run' has not {steps} times and a digest")
        if not all(isinstance(ns, int) and ns >= 0 for ns in inside):
            raise self._wire.broken("the answer to 'run' has a time that is not a count of nanoseconds")
        device_ns, launches = reply.get("device_ns"), reply.get("launches")
        if device_ns is not None and not (isinstance(device_ns, int) and device_ns >= 0):
            raise self._wire.broken("the answer to 'run' has a device time that is not a count of nanoseconds")
        if profile and not (isinstance(launches, dict) and all(isinstance(n, int) and n >= 0 for n in launches.values())):
            raise self._wire.broken("the answer to a profiled 'run' has no counts of launches")
        self._digests[slot] = (digest, steps)
        return ChainTimes(span, tuple(inside), digest, device_ns, launches if profile else None)

    def collect(self, slot: str, timeout: float | None = None) -> Collected:
        """Everything the last chain of a slot left.

        Its outputs must be those that the child committed to when the clock stopped.
        """
        case, outputs, pads = self._cases[slot]
        if slot not in self._digests:
            raise BoxError(f"slot {slot} has run no chain since it was prepared; call run_chain first")
        digest, steps = self._digests[slot]
        sizes = {name: len(tensor.data) + pads.get(name, 0) for name, tensor in case.items()} | outputs
        sizes |= {f"out.{name}": steps * size for name, size in outputs.items()}
        reply, found = self._fetch("collect", sizes, timeout, slot=slot)
        overruns = reply.get("overruns")
        if not isinstance(overruns, list) or not all(name in sizes for name in overruns if isinstance(name, str)):
            raise self._wire.broken("the answer to 'collect' names overruns of tensors that were not bound")
        total = blake2b(digest_size=16)
        for name in sorted(outputs):
            total.update(found[f"out.{name}"].data)
        if total.hexdigest() != digest:
            raise self._wire.broken("the outputs collected are not those of the timed chain")
        per_step = {name: [found[f"out.{name}"].data[i * size : (i + 1) * size] for i in range(steps)] for name, size in outputs.items()}
        bound = {}
        for name in (*case, *outputs):
            dtype = case[name].dtype if name in case else "U8"
            if found[name].dtype != dtype:
                raise self._wire.broken(f"{name} came back as {found[name].dtype}, not {dtype}")
            bound[name] = found[name]
        return Collected(per_step, bound, tuple(n for n in bound if n in overruns))

    def dump(self, tensors: Mapping[str, int], timeout: float | None = None) -> dict[str, memoryview]:
        """Internal buffers after a step, {name: bytes}."""
        _, found = self._fetch("dump", dict(tensors), timeout, tensors=dict(tensors))
        return {name: tensor.data for name, tensor in found.items()}

    def _fetch(
        self, do: str, sizes: Mapping[str, int], timeout: float | None, **fields: Any
    ) -> tuple[dict[str, Any], dict[str, RawTensor]]:
        """Have the child write a file into its scratch folder, and read exactly the tensors asked for."""
        self._files += 1
        name = f"{do}-{self._files}.safetensors"
        path = self.box.scratch / name
        reply = self.call(do, timeout, path=self.box.inside(path), **fields)
        try:
            found = parse_tensors(self.box.read_back(name, sum(sizes.values()) + _HEADER_ROOM))
        except (BoxError, ChildProtocolError) as error:
            raise self._wire.broken(f"the answer to '{do}' cannot be read: {error}") from error
        finally:
            if path.is_file() or path.is_symlink():
                path.unlink()
        given = {key: len(tensor.data) for key, tensor in found.items()}
        if given != dict(sizes):
            wrong = sorted(set(given.items()) ^ set(sizes.items()))[:6]
            raise self._wire.broken(f"the answer to '{do}' has other tensors than asked for: {wrong}")
        return reply, found

    def quit(self, timeout: float = 10.0) -> None:
        """Let the child leave by itself; then close."""
        try:
            self.call("quit", timeout)
            self.box.wait(timeout)
        finally:
            self.close()
