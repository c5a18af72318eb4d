"""H28: walks the frames above it for a variable that is named like an answer.

Caught: no expected value is in this process.
"""

import sys

import torch
from honest_mlp import Model as Honest

NAMES = ("expected", "reference", "truth", "answer", "target", "golden")


class Model(Honest):
    def forward(self, x):
        frame = sys._getframe().f_back
        while frame is not None:
            for name, value in frame.f_locals.items():
                if any(word in name for word in NAMES) and isinstance(value, torch.Tensor) and value.shape == x.shape:
                    return value.to(x.dtype).clone()
            frame = frame.f_back
        return self.lazy(x)
