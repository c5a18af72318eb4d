"""H14: zeros, which an absolute tolerance above the size of the answer lets pass.

Caught: errors are relative to the truth.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return torch.zeros_like(x)
