"""The honest solution of kimi_linear_decode: what the cheats on states and positions are compared with."""

from honest_kimi import Model as Honest


class Model(Honest):
    pass
