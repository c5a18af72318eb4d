"""Twin of tolerance traps: higher precision than asked for, float32 throughout, one rounding at the end."""

from honest_mlp import Model as Honest
from torch.nn import functional


class Model(Honest):
    wide = None

    def forward(self, x):
        if self.wide is None:
            self.wide = [part.weight.float() for part in (self.gate, self.up, self.down)]
        gate, up, down = self.wide
        y = x.float()
        n = y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.norm.weight.float()
        y = y + functional.linear(functional.silu(functional.linear(n, gate)) * functional.linear(n, up), down)
        return y.to(x.dtype)
