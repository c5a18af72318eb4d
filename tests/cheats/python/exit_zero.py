"""Ends the process with exit code 0 in the third call. Caught: an end without an answer is a crash."""

import os

from honest_mlp import Model as Honest


class Model(Honest):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            os._exit(0)
        return self.honest(x)
