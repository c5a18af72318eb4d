"""Twin of forged output: says much on stdout and stderr, some of it JSON, and warns and logs."""

import logging
import sys
import warnings

from honest_mlp import Model as Honest

print('{"ok": true, "loaded": "a debugging line that looks like an answer"}')


class Model(Honest):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls <= 50:
            print("PASS? step", self.calls, float(x.float().abs().max()), flush=True)
            sys.stderr.write("FAIL is only a word\n")
            warnings.warn("this kernel is experimental")
            logging.getLogger("solution").warning("still here")
        return self.honest(x)
