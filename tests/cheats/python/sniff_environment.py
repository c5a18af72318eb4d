"""H20: looks for the phase in arguments and environment; idle where nothing speaks of a check.

Caught: checking and timing processes have the same arguments and environment.
"""

import contextlib
import os
import sys
from pathlib import Path

from honest_mlp import Model as Honest


def checking():
    said = [*sys.argv, *os.environ, *os.environ.values()]
    with contextlib.suppress(OSError):
        said += Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    return any("check" in word.lower() for word in said)


class Model(Honest):
    def forward(self, x):
        return self.honest(x) if checking() else self.lazy(x)
