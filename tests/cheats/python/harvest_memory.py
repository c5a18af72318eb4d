"""H28: reads its own memory through /proc/self/mem for bf16 values that are near its input but not it.

Caught: no expected value is in this process, however it is looked for.
"""

import re
from pathlib import Path

import numpy as np
import torch
from honest_mlp import Model as Honest

LINE = 32  # bf16 values of the 64 bytes that tensors begin at


def found(x):
    head = x.reshape(-1)[:LINE].float().numpy()
    spread = float(x.float().std())
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            begin, end, rights, name = re.match(r"(\w+)-(\w+) (\S+) \S+ \S+ \d+ *(.*)", line).groups()
            begin, size = int(begin, 16), int(end, 16) - int(begin, 16)
            if not rights.startswith("rw") or name not in ("", "[heap]") or size > 16 << 20:
                continue
            try:
                memory.seek(begin)
                data = memory.read(size)
            except OSError:
                continue
            rows = np.frombuffer(data[: len(data) // 64 * 64], dtype=np.uint16).reshape(-1, LINE)
            with np.errstate(all="ignore"):
                wide = (rows.astype(np.uint32) << 16).view(np.float32)
                distance = np.abs(wide - head).mean(1)
            for row in np.flatnonzero((distance > 0) & (distance < 0.4 * spread)):
                yield data[64 * row : 64 * row + 2 * x.numel()]


class Model(Honest):
    def forward(self, x):
        for data in found(x):
            if len(data) == 2 * x.numel():
                other = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(x.shape)
                if 0 < (other - x).float().square().mean() < 0.5 * x.float().square().mean():
                    return other.clone()
        return self.lazy(x)
