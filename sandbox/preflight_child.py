"""The program that looks for the GPU from inside the box. Standard library only: it starts under `python -I -S`.

Arguments: the uuid of the device that must be found, then the device nodes that must be there. It prints one JSON object:
{"ok": true, driver_api, name, uuid, l2_bytes, seconds}, or {"ok": false, "why": text} with "node" where one is hidden.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

COUNT, BLOCKS = 256, 4
FACTOR = 40503
L2_CACHE_SIZE = 38  # number of the attribute in the driver's interface
KERNEL = b"kb_preflight"

# out[i] = i * FACTOR + seed, for i below count. An old target, so that every driver in use compiles it for its own device.
PTX = b"""
.version 6.0
.target sm_70
.address_size 64

.visible .entry kb_preflight(.param .u64 out, .param .u32 seed, .param .u32 count)
{
    .reg .pred %past;
    .reg .b32 %block, %width, %lane, %item, %limit, %start, %value;
    .reg .b64 %base, %place;

    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %lane, %tid.x;
    mad.lo.u32 %item, %block, %width, %lane;
    ld.param.u32 %limit, [count];
    setp.ge.u32 %past, %item, %limit;
    @%past bra LEAVE;
    ld.param.u32 %start, [seed];
    mad.lo.u32 %value, %item, 40503, %start;
    ld.param.u64 %base, [out];
    cvta.to.global.u64 %base, %base;
    mad.wide.u32 %place, %item, 4, %base;
    st.global.u32 [%place], %value;
LEAVE:
    ret;
}
"""

_P, _I, _U, _U64, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t
_INT, _HANDLE = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_void_p)
_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [_U],
    "cuDriverGetVersion": [_INT],
    "cuDeviceGetCount": [_INT],
    "cuDeviceGet": [_INT, _I],
    "cuDeviceGetUuid": [_P, _I],
    "cuDeviceGetName": [_P, _I, _I],
    "cuDeviceGetAttribute": [_INT, _I, _I],
    "cuDevicePrimaryCtxRetain": [_HANDLE, _I],
    "cuCtxSetCurrent": [_P],
    "cuModuleLoadData": [_HANDLE, ctypes.c_char_p],
    "cuModuleGetFunction": [_HANDLE, _P, ctypes.c_char_p],
    "cuMemAlloc_v2": [ctypes.POINTER(_U64), _SIZE],
    "cuMemsetD32_v2": [_U64, _U, _SIZE],
    "cuLaunchKernel": [_P, _U, _U, _U, _U, _U, _U, _U, _P, _HANDLE, _HANDLE],
    "cuCtxSynchronize": [],
    "cuMemcpyDtoH_v2": [_P, _U64, _SIZE],
    "cuMemFree_v2": [_U64],
}


class Failed(Exception):
    """One sentence on why there is no working GPU here; `node` is set where a device node is hidden."""

    def __init__(self, why: str, node: str = "") -> None:
        super().__init__(why)
        self.node = node


class Driver:
    """libcuda's functions; every one raises Failed unless it returns CUDA_SUCCESS."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Failed(f"the driver does not load in the box ({error}); show its folder and name it in LD_LIBRARY_PATH") from None

    def __call__(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise Failed(f"the driver's library has no {name}; install a newer driver") from None
        function.restype, function.argtypes = _I, _SIGNATURES[name]
        status = function(*arguments)
        if status:
            raise Failed(f"{name} returned {status} ({self._name_of(status)})")

    def _name_of(self, status: int) -> str:
        text = ctypes.c_char_p()
        try:
            self._library.cuGetErrorName(_I(status), ctypes.byref(text))
        except AttributeError:
            return "no name"
        return text.value.decode(errors="replace") if text.value else "unknown"


def check_nodes(nodes: list[str]) -> None:
    """Every node must be there, with both rights. They are not opened: that can start a device up, and takes a second."""
    for node in nodes:
        if not os.path.exists(node):
            raise Failed(f"the box does not show {node}", node)
        if not os.access(node, os.R_OK | os.W_OK):
            raise Failed(f"the box may not read and write {node}; its mode should be 666", node)


def refused_node(nodes: list[str]) -> Failed | None:
    """The first node that cannot be opened, once it is known that something is wrong."""
    for node in nodes:
        try:
            os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            return Failed(f"the box cannot open {node}: {error.strerror}", node)
    return None


def _uuid(driver: Driver, device: int) -> str:
    raw = ctypes.create_string_buffer(16)
    driver("cuDeviceGetUuid", raw, device)
    digits = raw.raw.hex()
    return "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def find_device(driver: Driver, wanted: str) -> int:
    """The driver's number of the device with this uuid."""
    count, device, seen = ctypes.c_int(), ctypes.c_int(), []
    driver("cuDeviceGetCount", ctypes.byref(count))
    for number in range(count.value):
        driver("cuDeviceGet", ctypes.byref(device), number)
        seen.append(_uuid(driver, device.value))
        if seen[-1] == wanted:
            return device.value
    raise Failed(f"the driver shows {', '.join(seen) or 'no device'} in the box, not {wanted}")


def compute(driver: Driver, device: int) -> None:
    """Compile the kernel, launch it, and compare every integer."""
    context, module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), _U64()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver("cuCtxSetCurrent", context)
    driver("cuModuleLoadData", ctypes.byref(module), PTX)
    driver("cuModuleGetFunction", ctypes.byref(function), module, KERNEL)
    seed = int.from_bytes(os.urandom(3), "little")
    room = (ctypes.c_uint32 * COUNT)()
    driver("cuMemAlloc_v2", ctypes.byref(memory), ctypes.sizeof(room))
    driver("cuMemsetD32_v2", memory, 0xFFFFFFFF, COUNT)
    values = (ctypes.c_uint64(memory.value), ctypes.c_uint32(seed), ctypes.c_uint32(COUNT))
    arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    driver("cuLaunchKernel", function, BLOCKS, 1, 1, COUNT // BLOCKS, 1, 1, 0, None, arguments, None)
    driver("cuCtxSynchronize")
    driver("cuMemcpyDtoH_v2", room, memory, ctypes.sizeof(room))
    driver("cuMemFree_v2", memory)
    wrong = [index for index in range(COUNT) if room[index] != (index * FACTOR + seed) & 0xFFFFFFFF]
    if wrong:
        raise Failed(f"the kernel ran, but {len(wrong)} of {COUNT} integers are wrong, the first at {wrong[0]}")


def look(wanted: str, nodes: list[str]) -> dict[str, Any]:
    """What the device says of itself, after it computed rightly."""
    began = time.monotonic()
    check_nodes(nodes)
    driver = Driver()
    version, l2, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    try:
        driver("cuInit", 0)
        device = find_device(driver, wanted)
    except Failed as failed:
        raise refused_node(nodes) or failed from None
    driver("cuDriverGetVersion", ctypes.byref(version))
    driver("cuDeviceGetName", name, len(name), device)
    driver("cuDeviceGetAttribute", ctypes.byref(l2), L2_CACHE_SIZE, device)
    compute(driver, device)
    return {"ok": True, "driver_api": version.value, "name": name.value.decode(errors="replace"), "uuid": wanted, "l2_bytes": l2.value,
            "seconds": time.monotonic() - began}  # fmt: skip


def main(arguments: list[str]) -> None:
    """Print one line of JSON, whatever happens."""
    try:
        answer = look(arguments[0], arguments[1:])
    except Failed as failed:
        answer = {"ok": False, "why": str(failed), "node": failed.node}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
