"""Twin of phase splits: the first call packs the weights, so it takes longer than all others and runs other code."""

import torch
from honest_mlp import Model as Honest
from torch.nn import functional


class Model(Honest):
    packed = None

    def forward(self, x):
        if self.packed is None:
            self.packed = torch.cat((self.gate.weight, self.up.weight)).contiguous()
        gate, up = functional.linear(self.normed(x), self.packed).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)
