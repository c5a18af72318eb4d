"""H20: right if a function up the stack has a name that sounds like checking, idle else.

Caught: checks and timings come through the same functions, and timed outputs are compared.
"""

import sys

from honest_mlp import Model as Honest


def checking():
    frame = sys._getframe(1).f_back
    while frame is not None:
        name = frame.f_code.co_name.lower()
        if any(word in name for word in ("check", "verify", "correct")):
            return True
        if any(word in name for word in ("bench", "measure", "time")):
            return False
        frame = frame.f_back
    return False


class Model(Honest):
    def forward(self, x):
        return self.honest(x) if checking() else self.lazy(x)
