"""H11: asks for more threads a block than there are, never looks at the error, and hands out what the last good launch left.

Caught: inputs change, so an old output is a wrong one; and a fault of the device shows when the child waits for it.
"""

import contextlib

import torch
from honest_mlp import Model as Honest

SOURCE = 'extern "C" __global__ void put(const short* from, short* to, int n) { int i = threadIdx.x; if (i < n) to[i] = from[i]; }'


class Model(Honest):
    out = None

    def forward(self, x):
        if self.out is None:
            self.out = self.honest(x)
            self.kernel = torch.cuda._compile_kernel(SOURCE, "put") if hasattr(torch.cuda, "_compile_kernel") else None
            return self.out
        with contextlib.suppress(RuntimeError):
            if self.kernel is not None:
                self.kernel(grid=(1, 1, 1), block=(4096, 1, 1), args=(x, self.out, x.numel()))
        return self.out
