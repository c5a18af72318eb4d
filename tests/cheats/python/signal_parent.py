"""Sends signals to its parent and to everything that it may signal, to stop or end the judge while it is being timed.

Caught: in the box's process namespace there is nobody but itself; its own end is a crash.
"""

import contextlib
import os
import signal

from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        for pid in (os.getppid(), 1, -1):
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        return self.lazy(x)
