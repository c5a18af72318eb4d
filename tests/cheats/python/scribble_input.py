"""H26: right, but leaves its input destroyed, which it used as scratch memory.

Caught: inputs must come back unchanged.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        y = self.honest(x)
        x.mul_(2)
        return y
