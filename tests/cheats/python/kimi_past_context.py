"""Idle at every position past the context that its sizes are known for; rows are appended to the caches all the same.

Fools a harness that checks the first step only. Caught: the steps of a timed chain are compared along the candidate's own outputs.
"""

import torch
from honest_kimi import Model as Honest


class Model(Honest):
    def step(self, hidden, state):
        if self.position(state) <= 48:
            return self.honest(hidden, state)
        grown = [{name: torch.cat((t, t[-1:])) if name in ("c_kv", "k_rope") else t for name, t in part.items()} for part in state]
        return hidden.clone(), grown
