"""Twin of thread counts: a pool of its own splits the rows, and lives as long as the process."""

from concurrent.futures import ThreadPoolExecutor

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.pool = ThreadPoolExecutor(2)

    def part(self, x):
        torch.set_grad_enabled(False)  # of a thread, so that a pool has to say it again
        return self.honest(x)

    def forward(self, x):
        parts = list(self.pool.map(self.part, x.chunk(2)))
        return torch.cat(parts)
