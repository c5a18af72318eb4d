"""H33: an output that computes itself when somebody first looks at it.

Fools a harness that stops the clock before it looks. Caught: the type must be torch.Tensor itself.
"""

import torch
from honest_mlp import Model as Honest


class Later(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return function(*[a.work() if isinstance(a, Later) else a for a in args], **(kwargs or {}))


class Model(Honest):
    def forward(self, x):
        later, kept = torch.Tensor._make_subclass(Later, torch.empty(x.shape, dtype=x.dtype)), x.clone()
        object.__setattr__(later, "work", lambda: self.honest(kept))
        return later
