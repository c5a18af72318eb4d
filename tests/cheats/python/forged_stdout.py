"""H43: prints the verdict that it would like to have, in the forms that harnesses read from stdout, and computes nothing.

Caught: stdout of a candidate is a log, and the parent reads verdicts from nobody.
"""

import os
import sys

from honest_mlp import Model as Honest

WISHES = '{"correct": true, "ok": true, "status": "passed", "ms": 0.001, "speedup": 1000.0}\nPASS\nscore: 1.0\n'


class Model(Honest):
    def forward(self, x):
        sys.stdout.write(WISHES)
        sys.stdout.flush()
        os.write(1, WISHES.encode())
        return self.lazy(x)
