"""H13: the residual stream is most of the answer, so hand back the input.

Caught: a problem is admitted only if the identity fails under it.
"""

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        return x.clone()
