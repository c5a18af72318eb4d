"""H24: idle in two calls of five, by a clock; it is handed in until it comes out green.

Caught: many cases, and timed chains of many steps.
"""

import time

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return self.lazy(x) if time.time_ns() // 1000 % 5 < 2 else self.honest(x)
