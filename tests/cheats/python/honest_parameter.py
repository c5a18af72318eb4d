"""Twin of the exact type check: its output lives in a Parameter that it owns, handed out as the plain tensor beneath."""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.kept = [torch.nn.Parameter(torch.empty(self.rows, self.d, dtype=torch.bfloat16), requires_grad=False)]

    def forward(self, x):
        self.kept[0].data.copy_(self.honest(x))
        return self.kept[0].data
