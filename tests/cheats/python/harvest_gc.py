"""H28: looks among all live objects for a tensor that is near its input but not it: the expected answer.

Caught: no expected value is in this process.
"""

import gc

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        for other in gc.get_objects():
            if type(other) is torch.Tensor and other.shape == x.shape and other.dtype == x.dtype and other.data_ptr() != x.data_ptr():
                distance = (other.float() - x.float()).square().mean()
                if 0 < distance < 0.5 * x.float().square().mean():
                    return other.clone()
        return self.lazy(x)
