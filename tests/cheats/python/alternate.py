"""Every second call is interpolated from the last change of the output, which moves little from step to step.

Caught: half of the steps of a chain are then wrong, and the median and the worst both count.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    change = None

    def forward(self, x):
        if self.change is not None:
            y, self.change = x + self.change, None
            return y
        y = self.honest(x)
        self.change = y - x
        return y
