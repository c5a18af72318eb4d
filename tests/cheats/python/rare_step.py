"""One step in twelve is left out, too few to move a median.

Caught: the worst step of a chain has a bound of its own.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.lazy(x) if self.calls % 12 == 0 else self.honest(x)
