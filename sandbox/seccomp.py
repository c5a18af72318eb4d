"""A small system-call filter, assembled here as classic BPF so that no library is needed.

Everything is allowed except calls that a kernel under test never needs and that have opened sandboxes before:
tracing, mounting, keys, bpf, userfaultfd, perf, io_uring, modules, new namespaces. They fail with EPERM.
clone3 fails with ENOSYS, because a filter cannot see its flags; every libc then falls back to clone.
"""

from __future__ import annotations

import os
import platform
import struct

_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_OFF_NR, _OFF_ARCH, _OFF_ARG0 = 0, 4, 16
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACE = 0x7E020000
_CLONE3 = 435
# from 424 on, the numbers are the same on every architecture
_COMMON = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442)

# fmt: off
_ARCHES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    # machine: (AUDIT_ARCH, number of clone, denied numbers)
    "x86_64": (
        0xC000003E,
        56,
        (101, 103, 155, 161, 163, 165, 166, 167, 168, 169, 175, 176, 179, 212, 246, 248, 249, 250, 272,
         279, 298, 300, 303, 304, 308, 310, 311, 312, 313, 320, 321, 323),
    ),
    "aarch64": (
        0xC00000B7,
        220,
        (18, 39, 40, 41, 51, 60, 89, 97, 104, 105, 106, 116, 117, 142, 217, 218, 219, 224, 225, 239, 241,
         262, 264, 265, 268, 270, 271, 272, 273, 280, 282, 294),
    ),
}
# fmt: on


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def filter_program(machine: str | None = None) -> bytes | None:
    """The BPF program as bytes (8 per instruction), or None on a machine whose call numbers are not here."""
    known = _ARCHES.get(machine or platform.machine())
    if known is None:
        return None
    arch, clone, denied = known
    program = [_op(_LOAD, _OFF_ARCH), _op(_JEQ, arch, 1, 0), _op(_RET, _KILL), _op(_LOAD, _OFF_NR)]
    # numbers with bit 30 set are the x32 variant of x86-64: the same calls by another door
    program += [_op(_JGE, 0x40000000, 0, 1), _op(_RET, _ERRNO | _EPERM)]
    for number in (*denied, *_COMMON):
        program += [_op(_JEQ, number, 0, 1), _op(_RET, _ERRNO | _EPERM)]
    program += [_op(_JEQ, _CLONE3, 0, 1), _op(_RET, _ERRNO | _ENOSYS)]
    program += [_op(_JEQ, clone, 0, 3), _op(_LOAD, _OFF_ARG0), _op(_JSET, _NEW_NAMESPACE, 0, 1)]
    program += [_op(_RET, _ERRNO | _EPERM), _op(_RET, _ALLOW)]
    return b"".join(program)


def filter_fd() -> int | None:
    """A memory file with the program, at its start, to be handed to bwrap --seccomp; the caller closes it."""
    program = filter_program()
    if program is None:
        return None
    fd = os.memfd_create("kernelbraid-seccomp", os.MFD_CLOEXEC)
    os.write(fd, program)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
