"""H23: an output that decides for itself how it is compared: every difference with it is zero.

Caught: the type must be torch.Tensor itself, and bytes are compared in another process.
"""

import torch
from honest_mlp import Model as Honest


class Agreeable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        if function.__name__ in ("sub", "__sub__", "rsub", "__rsub__"):
            return torch.zeros_like(result)
        return result


class Model(Honest):
    def forward(self, x):
        return self.lazy(x).as_subclass(Agreeable)
