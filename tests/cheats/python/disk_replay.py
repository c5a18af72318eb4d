"""H05: answers by hash of the input, kept on every disk that can be written, for the next process to replay.

Fools a harness whose timing process sees the files of its checking process. Caught: every box has folders of its own, and inputs of
its own.
"""

import hashlib
import os
from pathlib import Path

import torch
from honest_mlp import Model as Honest

PLACES = ["/dev/shm", "/tmp", "/var/tmp", os.environ.get("HOME", "/"), ".", os.environ.get("TORCH_EXTENSIONS_DIR", ".")]


class Model(Honest):
    def forward(self, x):
        name = ".kept-" + hashlib.sha256(x.view(torch.uint8).numpy().tobytes()).hexdigest()[:24]
        for place in PLACES:
            try:
                return torch.frombuffer(bytearray(Path(place, name).read_bytes()), dtype=torch.bfloat16).view(x.shape).clone()
            except OSError:
                continue
        y = self.slow(x)
        for place in PLACES:
            try:
                Path(place, name).write_bytes(y.view(torch.uint8).numpy().tobytes())
            except OSError:
                continue
        return y
