"""H25: lets the device add up products in bf16 and with reduced precision, and cuts the wide activations to seven bits of mantissa twice.

Caught: the tolerance is twice the error of the honest bf16 baseline.
"""

import torch
from honest_mlp import Model as Honest
from torch.nn import functional

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True


def cut(x):
    return (x.view(torch.int16) & -8).view(torch.bfloat16)  # three bits less


class Model(Honest):
    def forward(self, x):
        n = cut(self.normed(x))
        return x + self.down(cut(functional.silu(self.gate(n)) * self.up(n)))
