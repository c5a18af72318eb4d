"""H43: answers the request itself, at once and with a digest of nothing, then computes at leisure and drops the late answer.

The id of the request and the reply pipe lie in this process, so the forged line is well formed. Caught: the digest commits to outputs
that must be known when the clock stops.
"""

import gc
import json
import os
import sys

from honest_mlp import Model as Honest


def request_above():
    frame = sys._getframe()
    while frame is not None:
        request = frame.f_locals.get("request")
        if isinstance(request, dict) and "id" in request:
            return request
        frame = frame.f_back
    return None


class Model(Honest):
    answered = None

    def forward(self, x):
        request = request_above()
        if request is not None and request["id"] != self.answered and request.get("set"):
            self.answered = request["id"]
            reply = {"ok": True, "id": request["id"], "ns": [1] * int(request["steps"]), "digest": "0" * 32}
            for channel in (c for c in gc.get_objects() if type(c).__name__ == "Channel"):
                os.write(channel._replies, json.dumps(reply).encode() + b"\n")
                write = channel.write

                def once(late, channel=channel, write=write):
                    channel.write = write

                channel.write = once
        return self.honest(x)
