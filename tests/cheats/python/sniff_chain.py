"""Idle when its input is its own last output, that is from the second step of a chain on; checks of single steps see nothing of it.

Caught: the steps of a timed chain are compared along the candidate's own outputs.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    last = None

    def forward(self, x):
        again = self.last is not None and torch.equal(self.last, x)
        self.last = self.lazy(x) if again else self.honest(x)
        return self.last
