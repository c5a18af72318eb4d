"""Many launches where one is allowed; the program that counts them shares this process and is made to say one.

Must be caught by a count that is not taken in the candidate's process.
"""

import sys

from honest_kimi import Model as Honest

program = sys.modules.get("sandbox.torch_child")
if program is not None:
    program.TorchChild._launches = lambda child, profiler, steps: {"kernel fused_step": steps}


class Model(Honest):
    pass
