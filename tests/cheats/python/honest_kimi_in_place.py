"""Twin of state cheats: states live in memory of its own from the first step on, and are handed back as they are there."""

from honest_kimi import Model as Honest


class Model(Honest):
    def step(self, hidden, state):
        own = [{name: tensor.clone() for name, tensor in part.items()} for part in state]
        return self.honest(hidden, own)
