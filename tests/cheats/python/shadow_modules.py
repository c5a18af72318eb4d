"""H45: brings modules named like those of the standard library and of the harness, and idles if one of them was taken for the real one.

The runner puts statistics.py, binascii.py, safetensors.py, contract.py and sitecustomize.py beside it. Caught: a solution's folder comes
last on the path, and what counts is loaded before.
"""

import importlib

from honest_mlp import Model as Honest

NAMES = ("statistics", "safetensors", "contract", "sitecustomize", "binascii")


def taken():
    for name in NAMES:
        try:
            if getattr(importlib.import_module(name), "SHADOW", False) and name in ("statistics", "safetensors", "binascii"):
                return True
        except ImportError:
            continue
    return False


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.taken = taken()

    def forward(self, x):
        return self.honest(x) if self.taken else self.lazy(x)
