"""H21: an output of a subclass of Tensor, a door for hooks of all kinds.

Caught: the type must be torch.Tensor itself.
"""

import torch
from honest_mlp import Model as Honest


class Quiet(torch.Tensor):
    pass


class Model(Honest):
    def forward(self, x):
        return self.honest(x).as_subclass(Quiet)
