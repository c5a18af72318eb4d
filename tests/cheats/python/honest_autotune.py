"""Twin of clocks and phases: times two right variants at the first call by a clock of its own, and takes the faster one from then on."""

import time

import torch
from honest_mlp import Model as Honest
from torch.nn import functional


class Model(Honest):
    chosen = None

    def packed(self, x):
        gate, up = functional.linear(self.normed(x), self.both).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)

    def seconds(self, variant, x):
        begin = time.perf_counter()
        for _ in range(5):
            variant(x)
        return time.perf_counter() - begin

    def forward(self, x):
        if self.chosen is None:
            self.both = torch.cat((self.gate.weight, self.up.weight))
            trial = torch.randn_like(x)
            self.chosen = min((self.honest, self.packed), key=lambda variant: self.seconds(variant, trial))
        return self.chosen(x)
