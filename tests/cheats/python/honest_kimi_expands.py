"""The twin of kimi_state_ahead: does the same work on the cache in the first step of a chain."""

import torch
from honest_kimi import Model as Honest


def expanded(rows):
    wide = rows.float()
    for _ in range(2000):
        wide = wide @ (wide.t() @ wide) / (1 + wide.square().sum())
    return wide


def key(rows):
    return bytes(rows[:40, :8].contiguous().view(torch.uint8).numpy())


class Model(Honest):
    known = None

    def step(self, hidden, state):
        rows = next(part["c_kv"] for part in state if "c_kv" in part)
        if rows.shape[0] <= 48 and key(rows) != self.known:
            self.known = key(rows)
            expanded(rows[:48])
        return self.honest(hidden, state)
