"""H25: weights rounded to fp8 when they are first used, half of the bytes under a tolerance that does not see it.

Caught: the tolerance is twice the error of the honest bf16 baseline.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    rounded = False

    def forward(self, x):
        if not self.rounded:
            self.rounded = True
            for part in (self.gate, self.up, self.down):
                part.weight.data = part.weight.data.to(torch.float8_e4m3fn).to(torch.bfloat16)
        return self.honest(x)
