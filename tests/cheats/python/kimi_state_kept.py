"""Keeps the states to itself: hands back the ones that it was given, and goes on from its own while its last output comes in.

Fools a harness that looks at outputs only. Caught: all states are compared after a step.
"""

import torch
from honest_kimi import Model as Honest


class Model(Honest):
    own = last = None

    def step(self, hidden, state):
        again = self.last is not None and torch.equal(self.last, hidden)
        if not again:
            self.own = [{name: tensor.clone() for name, tensor in part.items()} for part in state]
        self.last, self.own = self.honest(hidden, self.own)
        return self.last, state
