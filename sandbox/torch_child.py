"""A trusted program that speaks the children's protocol for a PyTorch implementation of a problem.

It runs in the same kind of box, with the same commands (load, prepare, run, collect, evict, quit), so that a
baseline is timed like a candidate. `load` takes folder, package, module, name, size (a key of the package's SIZES,
or the fields of its Dims), threads, weights. The implementation has `step(token, state, position) -> hidden`.
"""

from __future__ import annotations

import binascii
import importlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import torch
from safetensors.torch import load_file

from sandbox.child_memory import Misused, Refused, evict_caches, junk, write_tensors
from sandbox.child_serving import Channel, Reply, handlers_of, serve

_NAMES = {
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
}


class _Implementation(Protocol):
    def step(self, token: torch.Tensor, state: dict[str, torch.Tensor], position: int) -> torch.Tensor: ...


@dataclass
class _Slot:
    """token, state tensors by name, and the output bytes of the last chain."""

    token: torch.Tensor
    state: dict[str, torch.Tensor]
    hidden: torch.Tensor
    shapes: dict[str, torch.Size]
    steps: list[torch.Tensor] = field(default_factory=list)


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return flat.numpy().data.cast("B")


class TorchChild:
    """All commands for one implementation; the one input is `token`, the one output `hidden`."""

    def __init__(self) -> None:
        self._implementation: _Implementation | None = None
        self._slots: dict[str, _Slot] = {}

    def load(self, request: dict[str, Any]) -> Reply:
        torch.set_num_threads(int(request["threads"]))
        torch.set_grad_enabled(False)
        sys.path.insert(0, str(request["folder"]))
        package = str(request["package"])
        definition = importlib.import_module(f"{package}.definition")
        module = importlib.import_module(f"{package}.{request['module']}")
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
        self._implementation = getattr(module, str(request["name"]))(dims, weights)
        return {"seconds": (time.monotonic_ns() - started) / 1e9}

    def prepare(self, request: dict[str, Any]) -> Reply:
        tensors = {name: tensor.clone() for name, tensor in load_file(request["case"]).items()}
        seed = int(request.get("junk_seed", 0))
        for name, extra in (request.get("capacity_pad") or {}).items():
            old = tensors[name]
            row = old[0].numel() * old.element_size()
            if int(extra) % row:
                raise Misused(f"capacity_pad of {name} is not a whole number of rows")
            filler = torch.frombuffer(bytearray(junk(seed, int(extra))), dtype=old.dtype)
            tensors[name] = torch.cat((old, filler.view(-1, *old.shape[1:])))
        if set(request["outputs"]) != {"hidden"} or "token" not in tensors:
            raise Misused("a torch child has the one input 'token' and the one output 'hidden'")
        hidden = bytearray(junk(seed + 1, int(request["outputs"]["hidden"])))
        token = tensors.pop("token")
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        left = torch.frombuffer(hidden, dtype=token.dtype)
        self._slots[str(request["slot"])] = _Slot(token, tensors, left, shapes)
        return {"bytes": sum(t.numel() * t.element_size() for t in tensors.values())}

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
        feeds = bool(request.get("feed"))
        for name, text in (request.get("set") or {}).items():
            target = slot.token if name == "token" else slot.state[name]
            fresh = torch.frombuffer(bytearray(binascii.a2b_base64(text)), dtype=target.dtype)
            target.copy_(fresh.view(target.shape))
        slot.steps, spans = [], []
        total = blake2b(digest_size=16)
        for index in range(int(request["steps"])):
            begin = time.monotonic_ns()
            hidden = implementation.step(slot.token, slot.state, int(request["position"]) + index)
            spans.append(time.monotonic_ns() - begin)
            slot.hidden = hidden.clone()
            slot.steps.append(slot.hidden)
            total.update(_bytes(slot.hidden))
            if feeds:
                slot.token = hidden.clone()
        return {"ns": spans, "digest": total.hexdigest()}

    def collect(self, request: dict[str, Any]) -> Reply:
        slot = self._slot(request)
        size = slot.hidden.numel() * slot.hidden.element_size()
        data = memoryview(b"".join(bytes(_bytes(step)) for step in slot.steps))
        items = [
            ("out.hidden", "U8", [len(slot.steps), size], data),
            ("hidden", "U8", [size], _bytes(slot.hidden)),
        ]
        for name, tensor in {"token": slot.token, **slot.state}.items():
            # a cache that grew is cut back to the rows that the parent made room for
            kept = tensor[: slot.shapes[name][0]] if name in slot.shapes else tensor
            items.append((name, _NAMES[kept.dtype], list(kept.shape), _bytes(kept)))
        return {"bytes": write_tensors(request["path"], items), "overruns": []}

    def evict(self, request: dict[str, Any]) -> Reply:
        evict_caches(int(request["bytes"]))
        return {}

    def describe(self, request: dict[str, Any]) -> Reply:
        return {"text": f"torch {torch.__version__}, {torch.get_num_threads()} threads"}

    def quit(self, request: dict[str, Any]) -> Reply:
        return {"bye": True}


def main() -> None:
    """Serve until the parent says quit."""
    serve(Channel(), handlers_of(TorchChild()), {"kind": "torch", "torch": torch.__version__})
