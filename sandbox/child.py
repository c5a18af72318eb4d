"""The program that runs in the box and calls one candidate library. Standard library only.

Its `main` runs under `python -I -S`. It reads one JSON object per line on stdin and answers each with one line on
the original stdout, which it moves away before candidate code is loaded: what a candidate prints goes to the log.
It maps bytes to bytes. It knows no expected value, and its own clock is only an estimate.

Commands (fields; answer fields besides "ok"):
  load      so, weights: [safetensors], threads, cpus: [int]|null, max_position        seconds
  prepare   slot, case: safetensors, outputs: {name: bytes}, junk_seed, capacity_pad: {name: bytes}   bytes
  run       slot, steps, position, feed: {output: input}, set: {name: base64}, stop_after     ns, digest
  collect   slot, path                                                                overruns, bytes
  dump      tensors: {name: bytes}, path        stamps (ns)        describe (text)        dispatches (count)
  read_pass position, variant, repeats (ns)     pairs slot, position, repeats, variant (step, read: ns)
  evict     bytes                               quit
Every command also carries do and id; its answer repeats the id.
Failures: {"ok": false, "kind": "refused" | "protocol", "error": text}. A crash is the death of this process.
"""

from __future__ import annotations

import binascii
import ctypes
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.child_memory import Misused, Refused, Slot, TensorFile, evict_caches, view, write_tensors
from sandbox.child_serving import Channel, Reply, handlers_of, serve

ABI = "kernelbraid-step-1"


class _KbTensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


def _table(entries: Mapping[str, tuple[int, int]]) -> ctypes.Array[_KbTensor]:
    rows = [_KbTensor(name.encode(), address, nbytes) for name, (address, nbytes) in entries.items()]
    return (_KbTensor * len(rows))(*rows)


_P, _I32, _I64, _U64, _S = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "kb_abi": (_S, []),
    "kb_create": (_P, [_P, _I32, _I32, _P, _I32, _P, _I32]),
    "kb_bind": (_I32, [_P, _P, _I32, _P, _I32]),
    "kb_step": (_I32, [_P, _I64]),
    "kb_step_until": (_I32, [_P, _I64, _I32]),
    "kb_dispatches": (_U64, [_P]),
    "kb_describe": (_S, [_P]),
    "kb_stamps": (_I32, [_P, _P, _I32]),
    "kb_dump": (_I32, [_P, _S, _P, _U64]),
    "kb_read_pass": (_I32, [_P, _I64, _I32]),
    "kb_error": (_S, [_P]),
    "kb_destroy": (None, [_P]),
}


class Library:
    """The candidate's functions, resolved when first needed."""

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise Refused(f"the library does not load: {error}") from None

    def __getattr__(self, name: str) -> Any:
        result, arguments = _SIGNATURES[name]
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise Refused(f"the library has no function {name}") from None
        function.restype, function.argtypes = result, arguments
        setattr(self, name, function)
        return function


class Candidate:
    """All commands for one loaded library."""

    def __init__(self) -> None:
        self._library: Library | None = None
        self._handle: int | None = None
        self._files: list[TensorFile] = []
        self._slots: dict[str, Slot] = {}
        self._bound: str | None = None
        self._error = ctypes.create_string_buffer(1024)

    def _loaded(self) -> tuple[Any, int]:
        if self._library is None or self._handle is None:
            raise Misused("no library is loaded; send load first")
        return self._library, self._handle

    def load(self, request: dict[str, Any]) -> Reply:
        if self._library is not None:
            raise Misused("a library is loaded already; one process serves one candidate")
        weights: dict[str, tuple[int, int]] = {}
        for path in request["weights"]:
            file = TensorFile(path)
            self._files.append(file)
            # a later file overrides earlier ones by name: that is how probe weights come in
            weights.update({name: (t.address, t.nbytes) for name, t in file.tensors.items()})
        started = time.monotonic_ns()
        self._library = Library(request["so"])
        abi = self._library.kb_abi()
        if abi != ABI.encode():
            raise Refused(f"kb_abi says {abi!r}; this child speaks {ABI}")
        cpus = request.get("cpus")
        threads = int(request.get("threads", 1))
        if cpus is not None and len(cpus) != threads:
            raise Misused(f"cpus names {len(cpus)} cpus for {threads} threads")
        places = (_I32 * len(cpus))(*cpus) if cpus is not None else None
        table, error = _table(weights), self._error
        handle = self._library.kb_create(table, len(table), threads, places, int(request["max_position"]), error, len(error))
        if not handle:
            raise Refused("kb_create refused: " + error.value.decode(errors="replace"))
        self._handle = int(handle)
        return {"seconds": (time.monotonic_ns() - started) / 1e9}

    def prepare(self, request: dict[str, Any]) -> Reply:
        name = str(request["slot"])
        fresh, old = Slot(request), self._slots.get(name)
        self._slots[name] = fresh
        self._bound = None  # kb_bind sees the state when a chain is asked for, inside its time, and never before
        if old is not None:
            old.free()  # after the new one stands, so no address comes back at once
        return {"bytes": sum(t.region.nbytes for t in fresh.tensors.values())}

    def _slot(self, name: str) -> Slot:
        if name not in self._slots:
            raise Misused(f"no slot {name} was prepared")
        return self._slots[name]

    def _bind(self, name: str) -> None:
        library, handle = self._loaded()
        entries = {n: (t.region.address, t.region.nbytes) for n, t in self._slot(name).tensors.items()}
        table, error = _table(entries), self._error
        self._bound = None
        if library.kb_bind(handle, table, len(table), error, len(error)) != 0:
            raise Refused("kb_bind refused: " + error.value.decode(errors="replace"))
        self._bound = name

    def _use(self, request: Mapping[str, Any]) -> Slot:
        name = str(request["slot"])
        if self._bound != name:
            self._bind(name)
        return self._slots[name]

    def run(self, request: dict[str, Any]) -> Reply:
        slot = self._use(request)
        library, handle = self._loaded()
        steps, position = int(request["steps"]), int(request["position"])
        stop_after = request.get("stop_after")
        slot.remember(steps)
        for name, text in (request.get("set") or {}).items():
            # values that must not be known before the clock starts
            data, target = binascii.a2b_base64(text), slot.tensors[name].region
            if len(data) != target.nbytes:
                raise Misused(f"set gives {len(data)} bytes for {name}, which has {target.nbytes}")
            ctypes.memmove(target.address, data, len(data))
        copies = [(slot.tensors[name].region.address, ctypes.addressof(slot.history[name]), size) for name, size in slot.outputs.items()]
        feeds = []
        for source, target_name in (request.get("feed") or {}).items():
            here, there = slot.tensors[source].region, slot.tensors[target_name].region
            if here.nbytes != there.nbytes:
                raise Misused(f"feed {source} to {target_name}: {here.nbytes} and {there.nbytes} bytes")
            feeds.append((there.address, here.address, here.nbytes))
        step, until, clock, move = library.kb_step, library.kb_step_until, time.monotonic_ns, ctypes.memmove
        spans = []
        for index in range(steps):
            at = position + index
            begin = clock()
            status = step(handle, at) if stop_after is None else until(handle, at, int(stop_after))
            spans.append(clock() - begin)
            if status != 0:
                raise Refused(f"step {index} at position {at} returned {status}{self._why()}")
            for address, kept, size in copies:
                move(kept + index * size, address, size)
            if index + 1 < steps:
                for target_address, source_address, size in feeds:
                    move(target_address, source_address, size)
        return {"ns": spans, "digest": slot.digest()}

    def collect(self, request: dict[str, Any]) -> Reply:
        slot = self._slot(str(request["slot"]))
        items = []
        for name, size in slot.outputs.items():
            data = memoryview(slot.history.get(name, b"")).cast("B")[: slot.steps * size]
            items.append((f"out.{name}", "U8", [slot.steps, size], data))
        for name, tensor in slot.tensors.items():
            data = view(tensor.region.address, tensor.region.nbytes)
            items.append((name, tensor.dtype, tensor.shape, data))
        overruns = [name for name, tensor in slot.tensors.items() if tensor.region.overrun()]
        return {"bytes": write_tensors(request["path"], items), "overruns": overruns}

    def dump(self, request: dict[str, Any]) -> Reply:
        library, handle = self._loaded()
        items = []
        for name, size in request["tensors"].items():
            buffer = ctypes.create_string_buffer(int(size))
            if library.kb_dump(handle, name.encode(), buffer, int(size)) != 0:
                raise Refused(f"kb_dump refused {name}")
            items.append((name, "U8", [int(size)], memoryview(buffer).cast("B")))
        return {"bytes": write_tensors(request["path"], items)}

    def stamps(self, request: dict[str, Any]) -> Reply:
        library, handle = self._loaded()
        room = (_U64 * int(request.get("capacity", 65536)))()
        count = library.kb_stamps(handle, room, len(room))
        if not 0 <= count <= len(room):
            raise Refused(f"kb_stamps returned {count}")
        return {"ns": list(room[:count])}

    def describe(self, request: dict[str, Any]) -> Reply:
        library, handle = self._loaded()
        return {"text": (library.kb_describe(handle) or b"")[: 1 << 20].decode(errors="replace")}

    def dispatches(self, request: dict[str, Any]) -> Reply:
        library, handle = self._loaded()
        return {"count": int(library.kb_dispatches(handle))}

    def _why(self) -> str:
        """What the candidate says of its last failure, if it has a kb_error (a hang's post-mortem, say)."""
        library, handle = self._loaded()
        try:
            said = library.kb_error(handle)
        except Refused:
            return ""
        return ": " + said[:1000].decode(errors="replace") if said else ""

    def _timed(self, call: Callable[[], int], what: str) -> int:
        begin = time.monotonic_ns()
        status = call()
        span = time.monotonic_ns() - begin
        if status != 0:
            raise Refused(f"{what} returned {status}{self._why()}")
        return span

    def read_pass(self, request: dict[str, Any]) -> Reply:
        library, handle = self._loaded()
        position, variant = int(request["position"]), int(request.get("variant", 0))
        call = lambda: library.kb_read_pass(handle, position, variant)  # noqa: E731
        return {"ns": [self._timed(call, "kb_read_pass") for _ in range(int(request.get("repeats", 1)))]}

    def pairs(self, request: dict[str, Any]) -> Reply:
        self._use(request)
        library, handle = self._loaded()
        position, variant = int(request["position"]), int(request.get("variant", 0))
        spans: dict[str, list[int]] = {"step": [], "read": []}
        calls = [
            ("step", lambda: library.kb_step(handle, position)),
            ("read", lambda: library.kb_read_pass(handle, position, variant)),
        ]
        for index in range(int(request["repeats"])):
            # ABBA, so that a drift hits both alike
            for name, call in calls if index % 2 == 0 else reversed(calls):
                spans[name].append(self._timed(call, name))
        return dict(spans)

    def evict(self, request: dict[str, Any]) -> Reply:
        evict_caches(int(request["bytes"]))
        return {}

    def quit(self, request: dict[str, Any]) -> Reply:
        if self._library is not None and self._handle is not None:
            self._library.kb_destroy(self._handle)
            self._handle = None
        return {"bye": True}


def main() -> None:
    """Serve until the parent says quit."""
    serve(Channel(), handlers_of(Candidate()), {"kind": "library"})
