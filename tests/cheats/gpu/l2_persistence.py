"""H37: reserves as much of the L2 cache as it can get for persisting data, so that its weights outlive a flush and rivals have less.

Caught: rivals run in another process, whose context the limit does not touch, and streams of weights larger than the cache gain nothing:
it is no faster than its honest twin.
"""

import ctypes

from honest_mlp import Model as Honest

PERSISTING_L2_CACHE_SIZE = 6  # cudaLimitPersistingL2CacheSize


class Model(Honest):
    asked = False

    def forward(self, x):
        if not self.asked:
            self.asked = True
            for name in ("libcudart.so", "libcudart.so.12", "libcudart.so.13"):
                try:
                    ctypes.CDLL(name).cudaDeviceSetLimit(PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(1 << 30))
                    break
                except OSError:
                    continue
        return self.honest(x)
