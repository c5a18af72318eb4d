"""H21: right values in a transposed layout: the next reader pays for putting them in order.

Caught: outputs must be contiguous.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return self.honest(x).t().contiguous().t()
