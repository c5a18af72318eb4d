"""H07: sleeps in its first calls, so that an adaptive timer thinks that a step is slow and takes few samples.

Caught: chains have a least length whatever the first one took, and nothing is gained by it.
"""

import time

from honest_mlp import Model as Honest


class Model(Honest):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls <= 6:
            time.sleep(0.03)
        return self.honest(x)
