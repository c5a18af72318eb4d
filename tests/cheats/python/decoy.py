"""H51: a fine function that is called with great show, and whose result is thrown away for a cheaper one.

Caught: only the output counts, and the cheap one is not the function.
"""

from honest_mlp import Model as Honest


def fused_gated_mlp(model, x):
    """The kernel that the author speaks of."""
    return model.honest(x[:1])


class Model(Honest):
    def forward(self, x):
        y = fused_gated_mlp(self, x)
        out = x.clone()
        out[:1].add_(0.0 * y)
        return out
