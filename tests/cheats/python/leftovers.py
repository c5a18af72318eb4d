"""H10: hands out memory that it never wrote, hoping that the reference's own answer was freed there.

Caught: the truth is computed in another process, after the candidate ran.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return torch.empty_like(x)
