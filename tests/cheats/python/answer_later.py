"""Hands out an empty output at once and computes it in a thread afterwards.

Fools a harness that looks at outputs a little later than it stops the clock. Caught: an output is copied when its call returns, and
the digest over all of them is part of the answer.
"""

import threading
import time

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        out, kept = torch.zeros_like(x), x.clone()

        def work():
            time.sleep(0.0005)
            out.copy_(self.honest(kept))

        threading.Thread(target=work).start()
        return out
