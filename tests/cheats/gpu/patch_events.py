"""H34: elapsed_time of every event says a thousandth. It computes four times as much as it should.

Caught: the parent's clock; a device time that the parent's time does not bear out is not believed.
"""

import torch
from honest_mlp import Model as Honest

real = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda begin, end: real(begin, end) / 1000


class Model(Honest):
    def forward(self, x):
        return self.slow(x)
