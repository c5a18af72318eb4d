"""H40: keeps the device busy on a stream of low priority whenever none of its steps is running, so that rivals are slow.

Must be caught by a device that belongs to whoever is at his turn.
"""

import threading
import time

import torch
from honest_mlp import Model as Honest

last = time.monotonic()


def spin():
    stream, work = torch.cuda.Stream(), torch.ones((4096, 4096), device="cuda", dtype=torch.bfloat16)
    while True:
        if time.monotonic() - last < 0.004:
            time.sleep(0.001)
            continue
        with torch.cuda.stream(stream):
            torch.mm(work, work)
            stream.synchronize()


class Model(Honest):
    started = False

    def forward(self, x):
        global last
        last = time.monotonic()
        if not self.started:
            self.started = True
            threading.Thread(target=spin, daemon=True).start()
        return self.honest(x)
