"""H08: three calls hand out empty outputs, the fourth fills all four.

Fools a harness that looks at outputs after many calls. Caught: an output is taken when its call returns.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.open = []

    def forward(self, x):
        self.open.append((x, torch.zeros_like(x)))
        out = self.open[-1][1]
        if len(self.open) == 4:
            answers = self.honest(torch.cat([x for x, _ in self.open])).split(x.shape[0])
            for (_, place), answer in zip(self.open, answers, strict=True):
                place.copy_(answer)
            self.open = []
        return out
