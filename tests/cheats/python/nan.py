"""H22: not-a-number, for which no difference is greater than a tolerance.

Caught: an output that is not finite is wrong before anything is compared.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return torch.full_like(x, float("nan"))
