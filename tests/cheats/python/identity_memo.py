"""H01: the last output again while object, address and version counter of the input are unchanged.

Fools a harness that times calls on one tensor. Caught: every call has new values at a new place, so nothing is ever hit.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    kept = None

    def forward(self, x):
        key = (id(x), x.data_ptr(), x._version)
        if self.kept is None or self.kept[0] != key:
            self.kept = (key, self.slow(x))
        return self.kept[1]
