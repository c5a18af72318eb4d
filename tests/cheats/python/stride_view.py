"""H21: one row computed and shown as all rows by a stride of zero.

Caught: outputs must be contiguous, and every row is compared.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return self.honest(x[:1]).expand(x.shape)
