"""H20: reads the request out of the frame of the program that calls it, and idles in a slot that is named after timing.

The program and the candidate share a process, so the look itself cannot be prevented. Caught: timed outputs are compared.
"""

import sys

from honest_mlp import Model as Honest


def timed():
    frame = sys._getframe()
    while frame is not None:
        request = frame.f_locals.get("request")
        if isinstance(request, dict):
            return request.get("slot") == "timed" or bool(request.get("set"))
        frame = frame.f_back
    return False


class Model(Honest):
    def forward(self, x):
        return self.lazy(x) if timed() else self.honest(x)
