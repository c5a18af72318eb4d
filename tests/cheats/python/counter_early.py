"""H06, the other way round: idle for the first calls, which are timed, and right at the end, when it is checked.

Caught: the very first call of a fresh process is compared with the truth.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.lazy(x) if self.calls < 20 else self.honest(x)
