"""H02: a memo whose key samples four elements of the input, coarsely.

Fools a harness that repeats an input or changes little of it. Caught: inputs of a chain differ where the key does not look.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.known = {}

    def forward(self, x):
        key = tuple((2 * x[0, :4].float()).round().tolist())
        if key not in self.known:
            self.known[key] = self.slow(x)
        return self.known[key].clone()
