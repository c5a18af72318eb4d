"""H50: computes on the CPU and hands out an output there, where a GPU was asked for.

Caught: the device of an output is compared before its values.
"""

import torch
from honest_mlp import Model as Honest
from torch.nn import functional


class Model(Honest):
    host = None

    def forward(self, x):
        if self.host is None:
            self.host = [p.weight.cpu() for p in (self.norm, self.gate, self.up, self.down)]
        norm, gate, up, down = self.host
        x = x.cpu()
        wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * norm.float()
        n = wide.to(x.dtype)
        return x + functional.linear(functional.silu(functional.linear(n, gate)) * functional.linear(n, up), down)
