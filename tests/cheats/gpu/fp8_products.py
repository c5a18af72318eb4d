"""H25: all three products in fp8 by the device's own instruction for it, at twice the rate.

Caught: the tolerance is twice the error of the honest bf16 baseline.
"""

import torch
from honest_mlp import Model as Honest
from torch.nn import functional

FP8 = torch.float8_e4m3fn


class Model(Honest):
    packed = None

    def product(self, x, weight):
        size = x.abs().amax().float().clamp(min=1e-6) / 448
        rows = functional.pad((x.float() / size).to(FP8).view(torch.uint8), (0, 0, 0, -x.shape[0] % 16)).view(FP8)
        return torch._scaled_mm(rows, weight[0].t(), scale_a=size, scale_b=weight[1], out_dtype=torch.bfloat16)[: x.shape[0]]

    def pack(self, part):
        size = part.weight.abs().amax().float() / 448
        return (part.weight.float() / size).to(FP8), size

    def forward(self, x):
        if self.packed is None:
            self.packed = [self.pack(part) for part in (self.gate, self.up, self.down)]
        n, (gate, up, down) = self.normed(x), self.packed
        return x + self.product(functional.silu(self.product(n, gate)) * self.product(n, up), down)
