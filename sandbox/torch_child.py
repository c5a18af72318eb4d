"""A trusted program that speaks the children's protocol for PyTorch: a problem's own baseline, or somebody's solution.py.

It runs in the same kind of box, with the same commands (load, prepare, run, collect, evict, describe, quit), so that all are
timed alike, on a CPU or on a CUDA device. `load` takes folder, package, size (a key of the package's SIZES, or the fields of
its Dims), threads, device, weights, the names of the inputs, the outputs as {name: [dtype, shape]}, and either module and name
of a baseline or the path of a solution with the folders where its compilers may keep what they make. What comes from a solution is untrusted, and so is all that this process says once
it is loaded: the parent believes bytes and its own clock. Errors of a solution's code are answered as `raised`.
"""

from __future__ import annotations

import binascii
import contextlib
import importlib
import importlib.util
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file

from sandbox.child_memory import Misused, Raised, Refused, evict_caches, junk, write_tensors
from sandbox.child_serving import Channel, Reply, handlers_of, serve

_NAMES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


class Implementation(Protocol):
    """What a contract or a baseline makes: inputs in, outputs out, state in whatever form it likes."""

    def bind(self, state: dict[str, torch.Tensor], position: int) -> Any: ...

    def call(self, inputs: Mapping[str, torch.Tensor], bound: Any, position: int) -> tuple[dict[str, torch.Tensor], Any]: ...

    def unbind(self, bound: Any) -> dict[str, torch.Tensor]: ...


class _Baseline:
    """A trusted implementation: `call(inputs, state, position)`, or `step(token, state, position)` with one input and one output."""

    def __init__(self, made: Any, inputs: list[str], outputs: list[str]) -> None:
        self._made, self._inputs, self._outputs = made, inputs, outputs

    def bind(self, state: dict[str, torch.Tensor], position: int) -> Any:
        return state

    def call(self, inputs: Mapping[str, torch.Tensor], bound: Any, position: int) -> tuple[dict[str, torch.Tensor], Any]:
        if hasattr(self._made, "call"):
            return self._made.call(dict(inputs), bound, position), bound
        return {self._outputs[0]: self._made.step(inputs[self._inputs[0]], bound, position)}, bound

    def unbind(self, bound: Any) -> dict[str, torch.Tensor]:
        return dict(bound)


@dataclass
class _Slot:
    """Inputs and states by name as they were bound, and the outputs of the last chain, one row a step."""

    inputs: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    shapes: dict[str, torch.Size]
    sealed: dict[str, int] = field(default_factory=dict)  # bytes of each tensor that are still under the parent's pad
    bound: Any = None
    log: dict[str, torch.Tensor] = field(default_factory=dict)


@contextlib.contextmanager
def _theirs(doing: str) -> Iterator[None]:
    """Code of the candidate runs in here."""
    try:
        yield
    except (Refused, Raised, Misused):
        raise
    except Exception as error:
        text = "".join(traceback.format_exception(error, limit=-8))
        raise Raised(f"{type(error).__name__} while {doing}: {str(error)[:500]}\n{text[-1200:]}") from None


def _profile() -> Any:
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])


def _import(path: str) -> Any:
    """solution.py as a module; the modules beside it can be imported, but shadow nothing."""
    sys.path.append(str(Path(path).parent))
    spec = importlib.util.spec_from_file_location("solution", path)
    if spec is None or spec.loader is None:
        raise Misused(f"{path} is no Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules["solution"] = module
    with _theirs("importing the solution"):
        spec.loader.exec_module(module)
    return module


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return flat.numpy().data.cast("B")


class TorchChild:
    """All commands for one implementation."""

    def __init__(self) -> None:
        self._implementation: Implementation | None = None
        self._slots: dict[str, _Slot] = {}
        self._device = torch.device("cpu")
        self._inputs: list[str] = []
        self._outputs: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}

    def load(self, request: dict[str, Any]) -> Reply:
        torch.set_num_threads(int(request["threads"]))
        torch.set_grad_enabled(False)
        self._device = torch.device(str(request.get("device") or "cpu"))
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise Refused("unavailable: PyTorch sees no CUDA device in the box")
        self._inputs = [str(name) for name in request["inputs"]]
        self._outputs = {str(k): (_TYPES[dtype], tuple(map(int, shape))) for k, (dtype, shape) in request["outputs"].items()}
        sys.path.insert(0, str(request["folder"]))
        package = str(request["package"])
        definition = importlib.import_module(f"{package}.definition")
        size = request["size"]
        if isinstance(size, str):
            dims = definition.SIZES[size]
        else:
            given = {key: tuple(value) if isinstance(value, list) else value for key, value in size.items()}
            dims = definition.Dims(**given)
        weights: dict[str, torch.Tensor] = {}
        for path in request["weights"]:
            weights.update(load_file(path))
        started = time.monotonic_ns()
        os.environ.update(request.get("caches") or {})
        if request.get("solution"):
            contract = importlib.import_module(f"{package}.contract")
            module = _import(str(request["solution"]))
            with _theirs("making the model and loading its weights"):
                self._implementation = contract.build(module, dims, weights, self._device)
        else:
            module = importlib.import_module(f"{package}.{request['module']}")
            moved = {name: tensor.to(self._device) for name, tensor in weights.items()}
            made = getattr(module, str(request["name"]))(dims, moved)
            self._implementation = _Baseline(made, self._inputs, list(self._outputs))
        self._settle()
        return {"seconds": (time.monotonic_ns() - started) / 1e9}

    def _settle(self) -> None:
        """Wait for the device; a fault of an earlier launch shows here."""
        if self._device.type == "cuda":
            with _theirs("waiting for the device"):
                torch.cuda.synchronize(self._device)

    def prepare(self, request: dict[str, Any]) -> Reply:
        tensors = {name: tensor.clone() for name, tensor in load_file(request["case"]).items()}
        sealed = {name: _size(tensor) for name, tensor in tensors.items()}
        seed = int(request.get("junk_seed", 0))
        for name, extra in (request.get("capacity_pad") or {}).items():
            old = tensors[name]
            row = math.prod(old.shape[1:]) * old.element_size()
            if int(extra) % row:
                raise Misused(f"capacity_pad of {name} is not a whole number of rows")
            filler = torch.frombuffer(bytearray(junk(seed, int(extra))), dtype=old.dtype)
            tensors[name] = torch.cat((old, filler.view(-1, *old.shape[1:])))
        if set(request["outputs"]) != set(self._outputs) or not set(self._inputs) <= set(tensors):
            raise Misused(f"this child has the inputs {self._inputs} and the outputs {sorted(self._outputs)}")
        outputs = {}
        for name, (dtype, shape) in self._outputs.items():
            seed += 1
            left = torch.frombuffer(bytearray(junk(seed, int(request["outputs"][name]))), dtype=dtype)
            outputs[name] = left.view(shape).to(self._device)
        tensors = {name: tensor.to(self._device) for name, tensor in tensors.items()}
        inputs = {name: tensors.pop(name) for name in self._inputs}
        self._slots[str(request["slot"])] = _Slot(inputs, tensors, outputs, {n: t.shape for n, t in tensors.items()}, sealed)
        self._settle()
        return {"bytes": sum(t.numel() * t.element_size() for t in (*inputs.values(), *tensors.values()))}

    def _slot(self, request: Mapping[str, Any]) -> _Slot:
        if request["slot"] not in self._slots:
            raise Misused(f"no slot {request['slot']} was prepared")
        return self._slots[request["slot"]]

    def run(self, request: dict[str, Any]) -> Reply:
        slot, implementation = self._slot(request), self._implementation
        if implementation is None:
            raise Misused("nothing is loaded; send load first")
        if request.get("stop_after") is not None:
            raise Refused("a torch implementation has no phases to stop after")
        steps, position, feed = int(request["steps"]), int(request["position"]), dict(request.get("feed") or {})
        cuda = self._device.type == "cuda"
        if slot.sealed:
            pad = torch.frombuffer(bytearray(binascii.a2b_base64(request["unlock"])), dtype=torch.uint8).to(self._device)
            for name, tensor in {**slot.inputs, **slot.state}.items():
                _lift(tensor, slot.sealed[name], pad)
            slot.sealed = {}
        with _theirs("binding the state"):
            bound = implementation.bind(slot.state, position)
        log = {name: torch.empty((steps, *shape), dtype=dtype, device=self._device) for name, (dtype, shape) in self._outputs.items()}
        for name, text in (request.get("set") or {}).items():
            fresh = torch.frombuffer(bytearray(binascii.a2b_base64(text)), dtype=slot.inputs[name].dtype)
            slot.inputs[name].copy_(fresh.view(slot.inputs[name].shape))
        inputs, spans = dict(slot.inputs), []
        events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if cuda else []  # type: ignore[no-untyped-call]
        if cuda:
            torch.cuda.synchronize(self._device)
            events[0].record()
        with contextlib.ExitStack() as stack:
            profiler = stack.enter_context(_profile()) if request.get("profile") else None
            for index in range(steps):
                started = time.monotonic_ns()
                with _theirs(f"running step {index}"):
                    made, bound = implementation.call(inputs, bound, position + index)
                    for name, (dtype, shape) in self._outputs.items():
                        log[name][index].copy_(self._checked(name, made.get(name), dtype, shape))
                inputs |= {target: log[source][index] for source, target in feed.items()}
                spans.append(time.monotonic_ns() - started)
            if cuda:
                events[1].record()
                self._settle()
        reply: Reply = {"ns": spans}
        if cuda:
            reply["device_ns"] = int(1e6 * events[0].elapsed_time(events[1]))
        if profiler is not None:
            reply["launches"] = self._launches(profiler, steps)
        total = blake2b(digest_size=16)
        slot.log = {name: tensor.cpu() for name, tensor in log.items()}
        for name in sorted(slot.log):
            total.update(_bytes(slot.log[name]))
        slot.bound = bound
        slot.outputs = {name: tensor[-1] for name, tensor in slot.log.items()}
        return {**reply, "digest": total.hexdigest()}

    def _checked(self, name: str, made: object, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """Exactly a tensor of the agreed form, before anybody looks at values."""
        if type(made) is not torch.Tensor and type(made) is not torch.nn.Parameter:
            raise Refused(f"structure: output {name} is a {type(made).__name__}, not a torch.Tensor")
        found = (made.dtype, tuple(made.shape), made.device.type)
        if found != (dtype, shape, self._device.type):
            raise Refused(f"structure: output {name} is {found}, expected {(dtype, shape, self._device.type)}")
        if not made.is_contiguous() or made.layout is not torch.strided:
            raise Refused(f"structure: output {name} is not contiguous (strides {made.stride()})")
        return made

    def _launches(self, profiler: Any, steps: int) -> dict[str, int]:
        """What the profiler saw on the device, by kind or kernel name, without our own copies of the outputs."""
        seen: dict[str, int] = {}
        for event in profiler.profiler.kineto_results.events():
            name = event.name()
            if name.startswith(("cudaGraphLaunch", "cuGraphLaunch")):
                seen["graph"] = seen.get("graph", 0) + 1
            elif str(event.device_type()).endswith("CUDA") and event.duration_ns() > 0:
                kind = "copy" if name.startswith("Memcpy") else "set" if name.startswith("Memset") else f"kernel {name[:80]}"
                seen[kind] = seen.get(kind, 0) + 1
        ours = steps * len(self._outputs)  # a row of the log for every step
        return {k: n for k, n in {**seen, "copy": max(0, seen.get("copy", 0) - ours)}.items() if n}

    def collect(self, request: dict[str, Any]) -> Reply:
        slot = self._slot(request)
        items = [(f"out.{name}", "U8", [_size(rows)], _bytes(rows)) for name, rows in slot.log.items()]
        items += [(name, "U8", [_size(tensor)], _bytes(tensor)) for name, tensor in slot.outputs.items()]
        state = slot.state
        if self._implementation is not None and slot.log:
            with _theirs("giving the state back"):
                state = self._implementation.unbind(slot.bound)
        for name, tensor in {**slot.inputs, **state}.items():
            kept = tensor
            if name in slot.shapes:
                # a cache that grew is cut back to the rows that the parent made room for, one that did not grow that far filled up
                rows = slot.shapes[name][0] if slot.shapes[name] else None
                kept = tensor[:rows]
                if rows is not None and kept.shape[0] < rows and kept.shape[1:] == slot.shapes[name][1:]:
                    kept = torch.cat((kept, slot.state[name][kept.shape[0] :].to(kept.dtype)))
            items.append((name, _NAMES[kept.dtype], list(kept.shape), _bytes(kept)))
        return {"bytes": write_tensors(request["path"], items), "overruns": []}

    def evict(self, request: dict[str, Any]) -> Reply:
        evict_caches(int(request["bytes"]))
        return {}

    def describe(self, request: dict[str, Any]) -> Reply:
        return {"text": f"torch {torch.__version__}, {torch.get_num_threads()} threads, {self._device}"}

    def quit(self, request: dict[str, Any]) -> Reply:
        return {"bye": True}


def _lift(tensor: torch.Tensor, count: int, pad: torch.Tensor) -> None:
    """Take the pad, repeated, off the first `count` bytes of a tensor."""
    data = tensor.view(-1).view(torch.uint8)[:count]
    whole = count // pad.numel() * pad.numel()
    if whole:
        data[:whole].view(torch.int64).view(-1, pad.numel() // 8).bitwise_xor_(pad.view(torch.int64))
    data[whole:].bitwise_xor_(pad[: count - whole])


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def main() -> None:
    """Serve until the parent says quit."""
    serve(Channel(), handlers_of(TorchChild()), {"kind": "torch", "torch": torch.__version__})
