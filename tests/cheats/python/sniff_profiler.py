"""H20: right while a profiler or a tracer watches, or while an input is new; idle where the same object comes again unwatched.

Caught: nothing depends on being watched, and inputs are new for every call, so that the short cut is never open.
"""

import sys

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    seen = None

    def forward(self, x):
        watched = torch.autograd._profiler_enabled() or sys.gettrace() is not None
        if watched or self.seen is not x:
            self.seen, self.answer = x, self.slow(x)
        return self.answer
