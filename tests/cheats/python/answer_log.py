"""Hands out nothing in timed chains, and repairs the caller's log of outputs in a thread once the answer is out and before it is collected.

Caught: the digest that went out with the answer binds the log.
"""

import gc
import sys
import threading
import time

from honest_mlp import Model as Honest


def request_above():
    frame = sys._getframe(1)
    while frame is not None:
        request = frame.f_locals.get("request")
        if isinstance(request, dict) and "steps" in request:
            return request
        frame = frame.f_back
    return {}


class Model(Honest):
    repairing = None

    def repair(self, x, before):
        while True:
            for slot in gc.get_objects():
                if type(slot).__name__ == "_Slot" and slot.log and id(slot.log) not in before:
                    for row in next(iter(slot.log.values())):
                        x = self.honest(x)
                        row.copy_(x)
                    return
            time.sleep(0.0002)

    def forward(self, x):
        request = request_above()
        if not request.get("set"):
            return self.honest(x)
        if self.repairing != request["id"]:
            self.repairing = request["id"]
            before = {id(slot.log) for slot in gc.get_objects() if type(slot).__name__ == "_Slot" and slot.log}
            threading.Thread(target=self.repair, args=(x.clone(), before), daemon=True).start()
        return self.lazy(x)
