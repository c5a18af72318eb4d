"""H03: compares the whole input with all that it has seen and copies the stored output.

Fools a harness that times the same values twice. Caught: values are fresh for every chain, so it only pays for comparing.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.seen = []

    def forward(self, x):
        for old, answer in self.seen:
            if torch.equal(old, x):
                return answer.clone()
        answer = self.slow(x)
        self.seen = [*self.seen[-7:], (x.clone(), answer)]
        return answer.clone()
