"""H26: zeroes its input and answers zeros, which is right for what is left of the input.

Fools a harness that asks the reference afterwards. Caught: the truth is computed from the parent's own copy.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        x.zero_()
        return torch.zeros_like(x)
