"""H43: leaves result files wherever a harness may look for one, among them the files that collect commands will write.

Caught: results are the bytes that the parent asked for, and nothing else is read.
"""

import contextlib
import json
import os
from pathlib import Path

from honest_mlp import Model as Honest

WISH = json.dumps({"correct": True, "passed": True, "time_ms": 0.001})


class Model(Honest):
    def forward(self, x):
        for folder in (".", "/tmp", os.environ.get("HOME", "/"), ".."):
            for name in ("result.json", "results.json", "score.txt", "reward.json", "collect-3.safetensors", "collect-2.safetensors"):
                with contextlib.suppress(OSError):
                    Path(folder, name).write_text(WISH)
        return self.lazy(x)
