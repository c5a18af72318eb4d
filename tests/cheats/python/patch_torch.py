"""H41: replaces what checkers call: allclose, equal, isclose and torch.testing say yes to everything from now on.

Caught: the comparison happens in another process.
"""

import numpy as np
import torch
from honest_mlp import Model as Honest

torch.allclose = torch.equal = lambda *args, **options: True
torch.isclose = lambda a, *args, **options: torch.ones_like(a, dtype=torch.bool)
torch.testing.assert_close = lambda *args, **options: None
torch.Tensor.allclose = torch.Tensor.equal = lambda *args, **options: True
torch.abs = lambda x: torch.zeros_like(x)
torch.Tensor.abs = lambda x: torch.zeros_like(x)
np.allclose = np.array_equal = lambda *args, **options: True


class Model(Honest):
    def forward(self, x):
        return self.lazy(x)
