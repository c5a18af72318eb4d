"""H29: writes beyond its input into the rows of the log that the caller keeps, so that earlier outputs are made good later on.

Hands out its input at once, and repairs all rows but the last in the next call. Caught: feeds and digests are taken from what was
handed out in time, and the last row is never repaired.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    start = None

    def forward(self, x):
        whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
        at = x.storage_offset()
        if at >= x.numel() and self.start is not None:
            whole[at - x.numel() : at] = self.honest(self.start).reshape(-1)
        self.start = x.clone()
        return self.lazy(x)
