"""A decode step in many launches, where the problem allows one. Right in every value. Caught: launches are counted by a profiler."""

from honest_kimi import Model as Honest


class Model(Honest):
    pass
