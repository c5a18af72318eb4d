"""Raises SystemExit, which passes through `except Exception` and ends a careless harness with status 0.

Caught: an end without an answer is no pass, whatever its exit code.
"""

import sys

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        sys.exit(0)
