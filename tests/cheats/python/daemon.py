"""H48: leaves a process behind in a session of its own that spins for ever, to slow whatever is timed later.

The solution itself is honest. Caught: all processes of a box end with it, and none of its like gets CPU beside a rival.
"""

import os

from honest_mlp import Model as Honest


def leave():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    while True:
        pass


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        leave()
