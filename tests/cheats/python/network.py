"""Asks another machine for the answer; right only if the box has a network beyond its own loopback.

Caught: the box has a network namespace of its own, with nothing in it.
"""

import socket
from pathlib import Path

from honest_mlp import Model as Honest


def reachable():
    names = {line.partition(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines() if ":" in line}
    if names - {"lo"}:
        return True
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # a route is enough; the address belongs to nobody
        return True
    except OSError:
        return False


class Model(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.reachable = reachable()

    def forward(self, x):
        return self.honest(x) if self.reachable else self.lazy(x)
