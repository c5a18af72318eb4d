"""H04: a memo keyed on id() alone; a later tensor that gets a dead one's id gets its answer, too.

Fools a harness that keeps its inputs alive. Caught: inputs come and go, and ids come back.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.known = {}

    def forward(self, x):
        if id(x) not in self.known:
            self.known[id(x)] = self.slow(x)
        return self.known[id(x)].clone()
