"""H12: the last thirty-second of the wide axis is left out of the sum.

Caught: the tolerance comes from the honest baseline's own error, not from a guess.
"""

from honest_mlp import Model as Honest
from torch.nn import functional


class Model(Honest):
    def forward(self, x):
        n, kept = self.normed(x), self.f - max(1, self.f // 32)
        wide = functional.silu(functional.linear(n, self.gate.weight[:kept])) * functional.linear(n, self.up.weight[:kept])
        return x + functional.linear(wide, self.down.weight[:, :kept])
