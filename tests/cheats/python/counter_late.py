"""H06: right for the first calls, which are checked, and idle afterwards, when it is timed.

Caught: outputs of timed chains are compared with the truth.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.honest(x) if self.calls <= 5 else self.lazy(x)
