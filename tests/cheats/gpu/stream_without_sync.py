"""H31: works on a stream of its own and hands out the output without waiting, so that events on the caller's stream see nothing of it.

Caught: the output is copied on the caller's stream as soon as the call returns, which is before the work is done.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    side = None

    def forward(self, x):
        if self.side is None:
            self.side = torch.cuda.Stream()
            self.work = torch.ones((4096, 4096), device=x.device, dtype=torch.bfloat16)
        out = torch.zeros_like(x)
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(self.side):
            for _ in range(8):
                torch.mm(self.work, self.work)  # enough of a delay that the race is lost every time
            out.copy_(self.honest(x))
        out.record_stream(self.side)
        x.record_stream(self.side)
        return out
