"""Twin of object hunts: turns the garbage collector off and freezes what is there, for even step times."""

import gc

from honest_mlp import Model as Honest

gc.collect()
gc.freeze()
gc.disable()


class Model(Honest):
    pass
