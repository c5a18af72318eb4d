"""A thread looks for inputs among all live tensors before the clock runs, and has their answers ready when the call comes.

Fools a harness whose inputs lie ready. Caught: the first input of a chain arrives inside the timed span, so what lay there was a decoy.
"""

import gc
import threading
import time

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.ready = {}
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        torch.set_grad_enabled(False)
        while True:
            for x in gc.get_objects():
                if (
                    type(x) is torch.Tensor
                    and x.shape == (self.rows, self.d)
                    and x.dtype == torch.bfloat16
                    and x.data_ptr() not in self.ready
                ):
                    self.ready[x.data_ptr()] = self.honest(x)
            time.sleep(0.01)

    def forward(self, x):
        if x.data_ptr() in self.ready:
            return self.ready[x.data_ptr()].clone()
        return self.slow(x)
