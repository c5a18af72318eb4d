"""Memory and files of a child: mapped safetensors, guarded regions, slots. Standard library only."""

# ruff: noqa: N818, PTH123 - named after what happened; pathlib would slow the start of every child
from __future__ import annotations

import ctypes
import json
import os
import struct
from _blake2 import blake2b
from _random import Random
from collections.abc import Mapping
from typing import Any, NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_READ, _WRITE, _PRIVATE, _ANONYMOUS = 1, 2, 2, 0x20
_CANARY = 0xA5
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.memchr.restype = ctypes.c_void_p
_libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Refused(Exception):
    """The candidate, or the request made of it, cannot be carried out."""


class Raised(Exception):
    """Code of the candidate raised an exception."""


class Misused(Exception):
    """The parent asked for something that does not fit the protocol."""


def _map(length: int, protection: int, fd: int = -1) -> int:
    flags = _PRIVATE | (_ANONYMOUS if fd < 0 else 0)
    address = _libc.mmap(None, length, protection, flags, fd, 0)
    if address is None or address == _FAILED:
        raise Refused(f"cannot map {length} bytes: {os.strerror(ctypes.get_errno())}")
    return int(address)


def view(address: int, length: int) -> memoryview:
    """The bytes at an address."""
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")


class Stored(NamedTuple):
    """One tensor inside a mapped safetensors file."""

    dtype: str
    shape: list[int]
    address: int
    nbytes: int


class TensorFile:
    """A safetensors file mapped read-only; `tensors` by name. Raises Refused if the header is not sound."""

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(fd).st_size
            (length,) = struct.unpack("<Q", os.read(fd, 8))
            if 8 + length > self.size:
                raise Refused(f"{path}: the header is longer than the file")
            header = json.loads(os.read(fd, length))
            self.address = _map(self.size, _READ, fd)
        finally:
            os.close(fd)
        start = 8 + length
        self.tensors: dict[str, Stored] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= self.size - start:
                raise Refused(f"{path}: tensor {name} lies outside the file")
            self.tensors[name] = Stored(entry["dtype"], entry["shape"], self.address + start + begin, end - begin)

    def close(self) -> None:
        """Unmap; the addresses in `tensors` die."""
        _libc.munmap(self.address, self.size)


def junk(seed: int, nbytes: int) -> bytes:
    """Plausible leftovers: read as bf16 or f32, values of about 0.06 to 0.5 of either sign."""
    source = Random(seed)
    high = bytes((0x3D, 0x3E, 0xBD, 0xBE)[value & 3] for value in range(256))
    half = (nbytes + 1) // 2
    filled = bytearray(2 * half)
    if half:
        filled[0::2] = source.getrandbits(8 * half).to_bytes(half, "little")
        filled[1::2] = source.getrandbits(8 * half).to_bytes(half, "little").translate(high)
    return bytes(filled[:nbytes])


class Region:
    """Page-aligned memory between inaccessible pages, at an address nobody can foresee."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.room = max(1, -(-nbytes // _PAGE)) * _PAGE
        before = (1 + os.urandom(1)[0] % 64) * _PAGE
        self._total = before + self.room + _PAGE
        self._base = _map(self._total, 0)
        self.address = self._base + before
        if _libc.mprotect(self.address, self.room, _READ | _WRITE) != 0:
            raise Refused(f"cannot get {nbytes} bytes: {os.strerror(ctypes.get_errno())}")
        ctypes.memset(self.address + nbytes, _CANARY, self.room - nbytes)

    def overrun(self) -> bool:
        """Whether something wrote between the tensor's end and its guard page."""
        slack = self.room - self.nbytes
        return bytes(view(self.address + self.nbytes, slack)) != bytes([_CANARY]) * slack if slack else False

    def free(self) -> None:
        _libc.munmap(self._base, self._total)


class Tensor(NamedTuple):
    """A tensor the candidate is bound to."""

    region: Region
    dtype: str
    shape: list[int]


class Slot:
    """One set of bound tensors: inputs and states from a case file, outputs full of junk."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.outputs: dict[str, int] = {name: int(size) for name, size in request["outputs"].items()}
        self.steps = 0
        self.history: dict[str, ctypes.Array[ctypes.c_char]] = {}
        seed, pads = int(request.get("junk_seed", 0)), request.get("capacity_pad") or {}
        case = TensorFile(request["case"])
        try:
            for name, stored in case.tensors.items():
                pad = int(pads.get(name, 0))
                region = Region(stored.nbytes + pad)
                ctypes.memmove(region.address, stored.address, stored.nbytes)
                seed += 1
                ctypes.memmove(region.address + stored.nbytes, junk(seed, pad), pad)
                shape = list(stored.shape)
                if pad:
                    row = stored.nbytes // shape[0] if shape and shape[0] else pad
                    if not shape or pad % row:
                        raise Misused(f"capacity_pad of {name} is not a whole number of rows")
                    shape[0] += pad // row
                self.tensors[name] = Tensor(region, stored.dtype, shape)
        finally:
            case.close()
        for name, size in self.outputs.items():
            seed += 1
            region = Region(size)
            ctypes.memmove(region.address, junk(seed, size), size)
            self.tensors[name] = Tensor(region, "U8", [size])

    def remember(self, steps: int) -> None:
        """Room for the outputs of that many steps."""
        self.steps = steps
        for name, size in self.outputs.items():
            if len(self.history.get(name, b"")) < size * steps:
                self.history[name] = ctypes.create_string_buffer(size * steps)

    def digest(self) -> str:
        """Commits the process to its outputs inside the timed span: collect must give the same bytes."""
        total = blake2b(digest_size=16)
        for name in sorted(self.outputs):
            total.update(memoryview(self.history[name])[: self.steps * self.outputs[name]])
        return total.hexdigest()

    def free(self) -> None:
        for tensor in self.tensors.values():
            tensor.region.free()


def write_tensors(path: str, items: list[tuple[str, str, list[int], memoryview]]) -> int:
    """Write (name, dtype, shape, bytes) as a safetensors file; the bytes of payload."""
    header: dict[str, Any] = {}
    offset = 0
    for name, dtype, shape, data in items:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for *_, data in items:
            file.write(data)
    return offset


_evictors: dict[int, int] = {}  # size -> address, mapped and touched once: page faults would take ten times as long as the reads


def evict_caches(size: int) -> None:
    """Read through `size` bytes of own memory, so that the caches hold them and nothing else. (Writing would not do: a large memset
    goes past the caches.)"""
    if size not in _evictors:
        _evictors[size] = _map(size, _READ | _WRITE)
        ctypes.memset(_evictors[size], 1, size)
    if _libc.memchr(_evictors[size], 2, size):
        raise RuntimeError("memory that nobody writes has changed")
