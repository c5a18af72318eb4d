"""Honest twin of streams: half of the work on a stream of its own, with events both ways, so that the caller's stream waits for it."""

import torch
from honest_mlp import Model as Honest
from torch.nn import functional


class Model(Honest):
    side = None

    def forward(self, x):
        if self.side is None:
            self.side = torch.cuda.Stream()
        here, n = torch.cuda.current_stream(), self.normed(x)
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            up = self.up(n)
        gate = functional.silu(self.gate(n))
        here.wait_stream(self.side)
        up.record_stream(here)
        n.record_stream(self.side)
        return x + self.down(gate * up)
