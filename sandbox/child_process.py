"""The parent's side of a child: start it in a box, speak the protocol, time it from outside, name how it fails.

    with ChildProcess.for_library(walls, limits, library=so, weights=[path]) as child:
        child.load(threads=2, max_position=2048)
        child.prepare("a", case_bytes, outputs={"hidden": 4608}, junk_seed=7)
        times = child.run_chain("a", steps=8, position=2048, feed={"hidden": "token"}, fresh={"token": token_bytes})
        tensors = child.collect("a")
"""

from __future__ import annotations

import binascii
import json
import os
import secrets
import select
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sandbox.box_errors import (
    BoxError,
    ChildCrashed,
    ChildError,
    ChildHung,
    ChildLimit,
    ChildProtocolError,
    ChildRefused,
)
from sandbox.isolation import Box, BoxReport, Limits, Pump, open_box, python_command
from sandbox.walls import Walls

_HELLO = "kernelbraid-child-1"
_HERE = Path(__file__).resolve().parent
_SOURCES = ("child.py", "child_memory.py", "child_serving.py", "torch_child.py")
_MAX_REPLY = 16 << 20
_HEADER_ROOM = 4 << 20


@dataclass(frozen=True)
class ChainTimes:
    """One timed chain. outside_ns is the parent's clock around it, inside_ns the child's own, per step."""

    outside_ns: int
    inside_ns: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class RawTensor:
    """Bytes from the child, with the dtype (safetensors name) and shape they were asked for with."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True)
class Collected:
    """`outputs`: per name one entry per step. `tensors`: all bound tensors. `overruns`: written past their end."""

    outputs: dict[str, list[memoryview]]
    tensors: dict[str, RawTensor]
    overruns: tuple[str, ...]


def parse_tensors(data: bytes | memoryview) -> dict[str, RawTensor]:
    """Read a safetensors file that nobody vouches for. Raises ChildProtocolError if it is not sound."""
    whole = memoryview(data).cast("B")
    try:
        (length,) = struct.unpack("<Q", whole[:8])
        header = json.loads(bytes(whole[8 : 8 + length]))
        body, found = whole[8 + length :], {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (int(offset) for offset in entry["data_offsets"])
            if not 0 <= begin <= end <= len(body):
                raise ValueError(f"tensor {name} lies outside the file")
            shape = tuple(int(size) for size in entry["shape"])
            found[str(name)] = RawTensor(str(entry["dtype"]), shape, body[begin:end])
        return found
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise ChildProtocolError(f"the tensor file is not sound: {error}") from error


class ChildProcess:
    """A program in a box that speaks the protocol. Any failure but a refusal ends it; it is not used again."""

    def __init__(
        self,
        walls: Walls,
        limits: Limits,
        *,
        program: str = "child.py",
        packages: bool = False,
        arguments: Sequence[str] = (),
        readonly: Sequence[tuple[Path, str]] = (),
        environment: Mapping[str, str] | None = None,
        scratch: Path | None = None,
        devices: Sequence[Path] = (),
        start_timeout_s: float = 30.0,
    ) -> None:
        """program: a file of this package, run with isolated flags; packages: with the virtual environment.

        readonly, environment, scratch, devices: see Box. The folders of `readonly` are what the child can read.
        """
        python, binds = python_command(walls, packages=packages)
        self._box: Box = open_box(limits, walls, [*binds, *readonly], scratch, environment, devices)
        self._start_timeout_s = start_timeout_s
        self._flags = ["-I"] if packages else ["-I", "-S"]
        self._python, self._program, self._arguments = python, program, list(arguments)
        self._log: Pump | None = None
        self._rest = b""
        self._cases: dict[str, tuple[dict[str, RawTensor], dict[str, int], dict[str, int]]] = {}
        self._digests: dict[str, tuple[str, int]] = {}
        self._files = 0
        self.hello: dict[str, Any] = {}
        self.library: Path | None = None
        self.weights: list[Path] = []

    @classmethod
    def for_library(
        cls, walls: Walls, limits: Limits, *, library: Path, weights: Sequence[Path] = (), **options: Any
    ) -> ChildProcess:
        """A child for one compiled candidate; library and weights are shown to it read-only. Then call `load`."""
        shown = [library, *weights]
        binds = [(path, f"/data/{number}/{path.name}") for number, path in enumerate(shown)]
        child = cls(walls, limits, readonly=[*binds, *options.pop("readonly", ())], **options)
        child.library, child.weights = library, list(weights)
        return child

    @classmethod
    def for_torch(
        cls, walls: Walls, limits: Limits, *, problem: Path, weights: Sequence[Path], threads: int, **options: Any
    ) -> ChildProcess:
        """A child for a trusted PyTorch implementation from a problem package. Then call `load_torch`."""
        binds = [(problem, f"/problems/{problem.name}")]
        binds += [(path, f"/data/{number}/{path.name}") for number, path in enumerate(weights)]
        environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        environment.update(options.pop("environment", None) or {})
        child = cls(
            walls, limits, program="torch_child.py", packages=True, readonly=binds, environment=environment, **options
        )
        child.weights = list(weights)
        return child

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child and all it started, and remove its box."""
        self._box.close()
        if self._log is not None:
            self._log.join()

    def _start(self) -> None:
        package = self._box.inbox / "kb" / "sandbox"
        package.mkdir(parents=True)
        for name in _SOURCES:
            (package / name).write_bytes((_HERE / name).read_bytes())
        program = self._box.inside(package / self._program)
        process = self._box.popen([self._python, *self._flags, program, *self._arguments], stdin=True)
        assert process.stdin and process.stdout and process.stderr
        self._commands, self._replies = process.stdin.fileno(), process.stdout.fileno()
        limits = self._box.limits
        self._log = Pump(process.stderr.fileno(), limits.output_bytes, lambda: self._box.kill("output"))
        os.set_blocking(self._replies, False)
        os.set_blocking(self._commands, False)
        self.hello = self._parsed(self._line("start", self._start_timeout_s))
        if self.hello.get("hello") != _HELLO:
            raise self._broken(f"the child greets with {str(self.hello)[:200]}, not {_HELLO}")

    @property
    def log(self) -> str:
        """What the child printed so far: the first and the last part of it."""
        return self._log.bytes().decode(errors="replace") if self._log else ""

    @property
    def box(self) -> Box:
        return self._box

    def report(self) -> BoxReport:
        """How the child ended, or what it has used so far."""
        return self._box.report()

    # --- the wire

    def _broken(self, message: str) -> ChildProtocolError:
        self._box.kill()
        return ChildProtocolError(message, self.log)

    def _ended(self) -> ChildError | BoxError:
        """Why the pipe closed."""
        by_itself = self._box.wait(2.0)
        self._box.kill()
        if self._log is not None:
            self._log.join()
        report, log = self._box.report(), self.log
        if report.limit is not None:
            return ChildLimit(report.limit, log)
        if not by_itself:
            return ChildProtocolError("the child closed its reply pipe and stayed alive", log)
        if not self.hello:
            return BoxError(f"the child did not start (exit code {report.exit_code}): {log.strip()[-500:]}")
        return ChildCrashed(report.signal, report.exit_code, log)

    def _wait_for(self, fd: int, events: int, deadline: float, what: str, allowed: float) -> None:
        poll = select.poll()
        poll.register(fd, events)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self._box.kill("wall")
            raise ChildHung(what, allowed, self.log)

    def _line(self, what: str, timeout: float) -> bytes:
        allowed = max(0.0, min(timeout, self._box.wall_left()))
        deadline = time.monotonic() + allowed
        while b"\n" not in self._rest:
            self._wait_for(self._replies, select.POLLIN, deadline, what, allowed)
            try:
                data = os.read(self._replies, 1 << 20)
            except BlockingIOError:
                continue
            if not data:
                raise self._ended()
            self._rest += data
            if len(self._rest) > _MAX_REPLY:
                raise self._broken(f"the answer to '{what}' is longer than {_MAX_REPLY} bytes")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            raise self._broken(f"the child answered something that is not JSON: {line[:200]!r}") from None
        if not isinstance(reply, dict) or not isinstance(reply.get("ok"), bool):
            raise self._broken(f"the child answered {line[:200]!r}, which has no 'ok'")
        return reply

    def _send(self, what: str, data: bytes, timeout: float) -> None:
        deadline, rest = time.monotonic() + timeout, memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._commands, rest) :]
            except BlockingIOError:
                self._wait_for(self._commands, select.POLLOUT, deadline, what, timeout)
            except BrokenPipeError:
                raise self._ended() from None

    def _exchange(self, do: str, timeout: float | None, fields: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """(reply, ns from the first byte written to the last byte read)."""
        allowed = self._box.wall_left() if timeout is None else timeout
        identity = secrets.token_hex(8)
        data = json.dumps({"do": do, "id": identity, **fields}).encode() + b"\n"
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        if self._rest or (poll.poll(0) and self._early()):
            raise self._broken("the child wrote an answer before it was asked")
        begin = time.monotonic_ns()
        self._send(do, data, allowed)
        line = self._line(do, allowed)
        span = time.monotonic_ns() - begin
        reply = self._parsed(line)
        if reply.get("id") != identity or self._rest:
            raise self._broken(f"the answer to '{do}' does not carry its id, or more follows it")
        if not reply["ok"]:
            error = str(reply.get("error", ""))[:2000]
            if reply.get("kind") == "refused":
                raise ChildRefused(error, self.log)
            raise ChildProtocolError(f"the child did not understand '{do}': {error}", self.log)
        return reply, span

    def _early(self) -> bool:
        """Whether bytes wait in the reply pipe (its end also wakes poll, and is reported by the next read)."""
        data = os.read(self._replies, 1)
        if not data:
            raise self._ended()
        return True

    def call(self, do: str, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
        """Send one command and return its answer. timeout in seconds; the box's wall limit holds anyway."""
        return self._exchange(do, timeout, fields)[0]

    # --- the commands

    def _data(self, path: Path) -> str:
        return self._box.inside(path.resolve())

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
        return self._exchange("load", timeout, fields)[1] / 1e9

    def load_torch(
        self, *, problem: Path, module: str, name: str, size: str | Mapping[str, Any], threads: int,
        timeout: float | None = None,
    ) -> float:
        """Import `module` of the problem package and make `name`(dims, weights); seconds it took."""
        fields = {
            "folder": os.path.dirname(self._data(problem)),
            "package": problem.name,
            "module": module,
            "name": name,
            "size": size,
            "threads": threads,
            "weights": [self._data(path) for path in self.weights],
        }
        return self._exchange("load", timeout, fields)[1] / 1e9

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
            "case": self._box.put(name, data),
            "outputs": dict(outputs),
            "junk_seed": secrets.randbits(32) if junk_seed is None else junk_seed,
            "capacity_pad": pads,
        }
        try:
            self.call("prepare", timeout, **fields)
        finally:
            (self._box.inbox / name).unlink(missing_ok=True)

    def run_chain(
        self,
        slot: str,
        *,
        steps: int,
        position: int,
        feed: Mapping[str, str] | None = None,
        fresh: Mapping[str, bytes] | None = None,
        stop_after: int | None = None,
        timeout: float | None = None,
    ) -> ChainTimes:
        """Run a chain of steps and time it from outside.

        feed copies outputs to inputs between steps. fresh {name: bytes} are inputs that the child first sees inside
        the timed span, so nothing can be computed ahead.
        """
        fields: dict[str, Any] = {"slot": slot, "steps": steps, "position": position, "feed": dict(feed or {})}
        if fresh:
            given = {name: binascii.b2a_base64(value, newline=False).decode() for name, value in fresh.items()}
            fields["set"] = given
        if stop_after is not None:
            fields["stop_after"] = stop_after
        reply, span = self._exchange("run", timeout, fields)
        inside, digest = reply.get("ns"), reply.get("digest")
        if not isinstance(digest, str) or not isinstance(inside, list) or len(inside) != steps:
            raise self._broken(f"the answer to 'run' has not {steps} times and a digest")
        if not all(isinstance(ns, int) and ns >= 0 for ns in inside):
            raise self._broken("the answer to 'run' has a time that is not a count of nanoseconds")
        self._digests[slot] = (digest, steps)
        return ChainTimes(span, tuple(inside), digest)

    def collect(self, slot: str, timeout: float | None = None) -> Collected:
        """Everything the last chain of a slot left. Its outputs must be those committed to when the clock stopped."""
        case, outputs, pads = self._cases[slot]
        if slot not in self._digests:
            raise BoxError(f"slot {slot} has run no chain since it was prepared; call run_chain first")
        digest, steps = self._digests[slot]
        sizes = {name: len(tensor.data) + pads.get(name, 0) for name, tensor in case.items()} | outputs
        sizes |= {f"out.{name}": steps * size for name, size in outputs.items()}
        reply, found = self._fetch("collect", sizes, timeout, slot=slot)
        total = blake2b(digest_size=16)
        for name in sorted(outputs):
            total.update(found[f"out.{name}"].data)
        if total.hexdigest() != digest:
            raise self._broken("the outputs collected are not those of the timed chain")
        per_step = {
            name: [found[f"out.{name}"].data[i * size : (i + 1) * size] for i in range(steps)]
            for name, size in outputs.items()
        }
        bound = {}
        for name in (*case, *outputs):
            dtype = case[name].dtype if name in case else "U8"
            if found[name].dtype != dtype:
                raise self._broken(f"{name} came back as {found[name].dtype}, not {dtype}")
            bound[name] = found[name]
        return Collected(per_step, bound, tuple(map(str, reply.get("overruns") or ())))

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
        path = self._box.scratch / name
        reply = self.call(do, timeout, path=self._box.inside(path), **fields)
        try:
            found = parse_tensors(self._box.read_back(name, sum(sizes.values()) + _HEADER_ROOM))
        except BoxError as error:
            raise self._broken(f"the answer to '{do}' cannot be read: {error}") from error
        finally:
            if os.path.isfile(path) or os.path.islink(path):
                path.unlink()
        given = {key: len(tensor.data) for key, tensor in found.items()}
        if given != dict(sizes):
            wrong = sorted(set(given.items()) ^ set(sizes.items()))[:6]
            raise self._broken(f"the answer to '{do}' has other tensors than asked for: {wrong}")
        return reply, found

    def quit(self, timeout: float = 10.0) -> None:
        """Let the child leave by itself; then close."""
        try:
            self.call("quit", timeout)
        finally:
            self.close()
