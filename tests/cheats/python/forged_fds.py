"""H43: writes a forged answer to every descriptor that is open, the reply pipe among them.

Caught: an answer must carry the id of its request, and nothing may follow or precede it.
"""

import contextlib
import os

from honest_mlp import Model as Honest

FORGED = b'{"ok": true, "id": "forged", "ns": [1], "digest": "00"}\n'


class Model(Honest):
    def forward(self, x):
        for fd in range(3, 64):
            with contextlib.suppress(OSError):
                os.set_blocking(fd, False)
                os.write(fd, FORGED)
        return self.lazy(x)
