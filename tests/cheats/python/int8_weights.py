"""H25: weights rounded to eight bits with a scale per row, which is nearer than fp8 and still no bf16.

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
                scale = part.weight.data.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
                part.weight.data = ((part.weight.data.float() / scale).round() * scale).to(torch.bfloat16)
        return self.honest(x)
