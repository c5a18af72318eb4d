"""H18: draws the inputs of the usual seeds itself, answers them at the first call, and afterwards looks up the nearest one.

Fools a harness with a fixed seed. Caught: seeds are secret and of many bits.
"""

import torch
from honest_mlp import Model as Honest

SEEDS = (0, 1, 2, 3, 42, 123, 1234, 1337)


class Model(Honest):
    answers = None

    def forward(self, x):
        if self.answers is None:
            drawn = [torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in SEEDS]
            self.inputs = torch.stack(drawn)
            self.answers = torch.stack([self.honest(each) for each in drawn])
        near = (self.inputs[:, 0, :8] - x[0, :8]).float().square().sum(-1).argmin()
        return self.answers[near].clone()
