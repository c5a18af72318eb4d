"""H41: replaces the loop of the program that calls it: the first step is computed, the others of a chain are copies of it.

Caught: what the program says is only bytes; every step of the chain is compared with the truth.
"""

import gc
import sys

from honest_mlp import Model as Honest

COMMANDS = {"prepare", "run", "collect", "evict"}


def shortened(run, program):
    """The command, doing one step of as many as were asked for."""

    def short(request):
        steps = int(request["steps"])
        reply = run({**request, "steps": 1})
        slot = run.__self__._slots[request["slot"]]
        slot.log = {name: rows.repeat(steps, *[1] * (rows.dim() - 1)) for name, rows in slot.log.items()}
        total = program.blake2b(digest_size=16)
        for name in sorted(slot.log):
            total.update(program._bytes(slot.log[name]))
        return {**reply, "ns": reply["ns"] * steps, "digest": total.hexdigest()}

    return short


def patch():
    program = sys.modules.get("sandbox.torch_child")
    for handlers in gc.get_objects() if program is not None else ():
        if type(handlers) is dict and handlers.keys() >= COMMANDS:
            handlers["run"] = shortened(handlers["run"], program)


patch()


class Model(Honest):
    pass
