"""H22: infinity, whose relative tolerance is infinite, too.

Caught: an output that is not finite is wrong before anything is compared.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return torch.full_like(x, float("inf"))
