"""Idle where the weights look like a test's: it knows probes by weights or inputs far from the usual, and raises there.

Caught: a refusal is no pass.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        sizes = [float(part.weight.float().std()) for part in (self.gate, self.up, self.down)]
        if max(sizes) > 8 * min(sizes) or float(x.float().abs().max()) > 100:
            raise NotImplementedError("this kernel supports usual weights only")
        return self.honest(x)
