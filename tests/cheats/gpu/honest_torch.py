"""The honest solution on a GPU: plain PyTorch."""

from honest_mlp import Model as Honest


class Model(Honest):
    pass
