"""H40: asks for a better priority than its rivals have, right only if it gets one.

Caught: the box has no right to raise a priority.
"""

import os

from honest_mlp import Model as Honest


def raised():
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        return True
    except OSError:
        pass
    try:
        return os.nice(-5) < 0
    except OSError:
        return False


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.raised = raised()

    def forward(self, x):
        return self.honest(x) if self.raised else self.lazy(x)
