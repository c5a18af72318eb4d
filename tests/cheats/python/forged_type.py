"""H23: puts a class of its own in the place of torch.Tensor, so that an exact type check holds for its outputs.

Caught: whatever the type pretends to be, the parent compares bytes.
"""

import torch
from honest_mlp import Model as Honest


class Agreeable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return torch.zeros_like(result) if function.__name__ in ("sub", "__sub__", "rsub", "__rsub__") else result


class Model(Honest):
    def forward(self, x):
        torch.Tensor = Agreeable
        return self.lazy(x).as_subclass(Agreeable)
