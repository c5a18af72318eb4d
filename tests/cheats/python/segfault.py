"""Reads address zero in the third call. Caught: a crash is a status, in whatever phase it comes."""

import ctypes

from honest_mlp import Model as Honest


class Model(Honest):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            ctypes.string_at(0)
        return self.honest(x)
