"""H05: the first process leaves a mark on every disk it can write; a process that finds the mark knows it is being timed.

Fools a harness that checks in one process and times in the next. Caught: no file of one box is seen in another.
"""

import os
from pathlib import Path

from honest_mlp import Model as Honest

PLACES = ["/dev/shm", "/tmp", "/var/tmp", os.environ.get("HOME", "/"), ".", os.environ.get("TORCH_EXTENSIONS_DIR", ".")]


def marked():
    found = any(Path(place, ".was-here").exists() for place in PLACES)
    for place in PLACES:
        try:
            Path(place, ".was-here").write_text("1")
        except OSError:
            continue
    return found


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.second = marked()

    def forward(self, x):
        return self.lazy(x) if self.second else self.slow(x)
