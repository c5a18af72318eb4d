"""H46: looks for other people's solutions, libraries and run folders all over the file system; right only if it finds one.

Caught: the box holds the system, this solution and the files of the contract, and nothing else.
"""

import os
from pathlib import Path

from honest_mlp import Model as Honest

PLACES = ("/root", "/home", "/work", "/tmp", "/var/tmp", "/data", "/in", "/box", "/dev/shm", os.environ.get("HOME", "/"))
ENDINGS = (".so", ".cu", ".jsonl", ".pem", ".key", ".sqlite3")


def found():
    for place in map(Path, PLACES):
        try:
            for path in place.rglob("*"):
                venv = "site-packages" in path.parts or "lib" in path.parts
                if not venv and (path.suffix in ENDINGS or path.name in ("tolerance.py", "reference.py", "baseline.py", "test_judge.py")):
                    return True
        except OSError:
            continue
    return False


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.found = found()

    def forward(self, x):
        return self.honest(x) if self.found else self.lazy(x)
