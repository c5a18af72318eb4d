"""H36: all the work is done when the model is made, for the inputs that test generators usually draw; calls only look up.

Caught: no input is known before the clock runs, so every look-up misses and the slow way is taken.
"""

import torch
from honest_mlp import Model as Honest


def usual(rows, d):
    for seed in (0, 1, 42, 1234):
        yield torch.randn((rows, d), generator=torch.Generator().manual_seed(seed)).bfloat16()
    yield torch.ones((rows, d), dtype=torch.bfloat16)
    yield torch.zeros((rows, d), dtype=torch.bfloat16)


class Model(Honest):
    answers = None

    def eval(self):
        made = super().eval()
        self.answers = {bytes(x.view(torch.uint8).numpy()): self.honest(x) for x in usual(self.rows, self.d)}
        return made

    def forward(self, x):
        known = (self.answers or {}).get(bytes(x.view(torch.uint8).numpy()))
        return self.slow(x) if known is None else known.clone()
