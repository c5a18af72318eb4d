"""H20: one launch with an idle step while a profiler counts, many launches with the right one else.

Must be caught by comparing the outputs of profiled chains with the truth, too.
"""

import sys

from honest_kimi import Model as Honest


def profiled():
    frame = sys._getframe()
    while frame is not None:
        request = frame.f_locals.get("request")
        if isinstance(request, dict) and "slot" in request:
            return bool(request.get("profile"))
        frame = frame.f_back
    return False


class Model(Honest):
    def step(self, hidden, state):
        return (hidden.clone(), state) if profiled() else self.honest(hidden, state)
