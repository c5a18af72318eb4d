"""H25: the wide activations rounded to fp8 before the second product.

Caught: the tolerance is twice the error of the honest bf16 baseline.
"""

import torch
from honest_mlp import Model as Honest
from torch.nn import functional


class Model(Honest):
    def forward(self, x):
        n = self.normed(x)
        wide = functional.silu(self.gate(n)) * self.up(n)
        return x + self.down(wide.to(torch.float8_e4m3fn).to(torch.bfloat16))
