"""Tensor files (safetensors) as bytes, read without trust and without numpy or torch."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from sandbox.box_errors import ChildProtocolError


@dataclass(frozen=True)
class RawTensor:
    """Bytes from the child, with the dtype (safetensors name) and shape they were asked for with."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


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
