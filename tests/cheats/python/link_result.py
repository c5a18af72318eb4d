"""H43: the file that the parent reads back is made a link to a file of the system, so that the parent reads what it should not.

Caught: only plain files of the scratch folder are read, and they must have the digest's bytes.
"""

import contextlib
import os

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        for number in range(2, 40):
            with contextlib.suppress(OSError):
                os.symlink("/etc/passwd", f"collect-{number}.safetensors")
        return self.lazy(x)
