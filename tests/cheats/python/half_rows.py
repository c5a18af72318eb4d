"""H12: the last row is padded with its input, the others are computed.

Caught: every row of every output is compared.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return torch.cat((self.honest(x[:-1]), x[-1:]))
