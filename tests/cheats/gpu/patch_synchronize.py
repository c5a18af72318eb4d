"""H34: synchronize does nothing any more, so that whoever waits for the device before stopping the clock does not wait.

Caught: the outputs are in the answer, and they are not there before the device is done; the parent's clock runs until then.
"""

import torch
from honest_mlp import Model as Honest

torch.cuda.synchronize = lambda device=None: None
torch.cuda.Stream.synchronize = lambda stream: None
torch.cuda.Event.synchronize = lambda event: None


class Model(Honest):
    def forward(self, x):
        return self.slow(x)
