"""H21: an output with one axis too many, which a comparison broadcasts away.

Caught: the exact shape is checked before any value.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return self.honest(x)[None]
