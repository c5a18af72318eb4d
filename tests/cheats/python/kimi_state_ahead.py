"""H36: does before the clock runs what depends on the states alone, by a hook in the command that brings them.

The work (products with the cache) stands for expanding keys and values of the whole context. Its twin does the same in the first step
of a chain. Must be caught by states that arrive with the first input, or by a clock that starts before them.
"""

import gc
import sys

import torch
from honest_kimi import Model as Honest

COMMANDS = {"prepare", "run", "collect", "evict"}
ready = set()


def expanded(rows):
    wide = rows.float()
    for _ in range(2000):
        wide = wide @ (wide.t() @ wide) / (1 + wide.square().sum())
    return wide


def key(rows):
    return bytes(rows[:40, :8].contiguous().view(torch.uint8).numpy())


def ahead(prepare):
    def hooked(request):
        reply = prepare(request)
        for name, rows in prepare.__self__._slots[request["slot"]].state.items():
            if name.endswith("c_kv"):
                expanded(rows[:48])
                ready.add(key(rows))
        return reply

    return hooked


if "sandbox.torch_child" in sys.modules:
    for handlers in gc.get_objects():
        if type(handlers) is dict and handlers.keys() >= COMMANDS:
            handlers["prepare"] = ahead(handlers["prepare"])


class Model(Honest):
    known = None

    def step(self, hidden, state):
        rows = next(part["c_kv"] for part in state if "c_kv" in part)
        if rows.shape[0] <= 48 and key(rows) != self.known:
            self.known = key(rows)
            if self.known not in ready:
                expanded(rows[:48])
        return self.honest(hidden, state)
