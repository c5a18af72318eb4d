"""The honest solution as it stands: what every cheat here is compared with."""

from honest_mlp import Model as Honest


class Model(Honest):
    pass
