"""Errors of the memory.

KernelbraidError
└── StoreError         the memory folder cannot be used as asked
    ├── MemoryBusy     another process owns the store
    ├── UnknownTrick   no trick, or more than one, has that id
    └── NotProven      what was handed in does not carry its proof
"""

from __future__ import annotations

from sandbox.errors import KernelbraidError


class StoreError(KernelbraidError):
    """The memory folder cannot be used as asked."""


class MemoryBusy(StoreError):
    """Another process owns the store; only one may write."""


class UnknownTrick(StoreError):
    """No trick, or more than one, has an id that begins so."""


class NotProven(StoreError):
    """A standing that the evaluation handed in does not support."""
