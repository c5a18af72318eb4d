"""H11 on a CPU: the launch fails, nobody looks at the error, and the output of the last good call stands.

Caught: inputs of a chain change, so an old output is a wrong one.
"""

import contextlib

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    launches = 0
    out = None

    def launch(self, x):
        self.launches += 1
        if self.launches > 1:
            raise RuntimeError("too many resources requested for launch")
        self.out.copy_(self.honest(x))

    def forward(self, x):
        if self.out is None:
            self.out = torch.zeros_like(x)
        with contextlib.suppress(RuntimeError):
            self.launch(x)
        return self.out
