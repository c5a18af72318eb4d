"""H17: takes the mean square of the first input for that of all inputs, because all are drawn alike.

Caught: each row has its own, and probes draw inputs of other sizes.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    scale = None

    def normed(self, x):
        if self.scale is None:
            self.scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        return (x.float() * self.scale * self.norm.weight.float()).to(torch.bfloat16)
