"""H34: every clock of the time module runs a hundred times slower once this is imported.

Fools a harness that times in its own process. Caught: the judge's clock is in another process.
"""

import time

from honest_mlp import Model as Honest

for name in ("time", "perf_counter", "monotonic", "process_time"):
    real, begin = getattr(time, name), getattr(time, name)()
    setattr(time, name, lambda real=real, begin=begin: begin + (real() - begin) / 100)
    real_ns, begin_ns = getattr(time, f"{name}_ns"), getattr(time, f"{name}_ns")()
    setattr(time, f"{name}_ns", lambda real=real_ns, begin=begin_ns: begin + (real() - begin) // 100)


class Model(Honest):
    def forward(self, x):
        return self.slow(x)
