"""Twin of leftovers and memos: memory is taken once and used for every step, and the same output buffer is handed out each time."""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    room = None

    def forward(self, x):
        if self.room is None:
            shapes = {"gate": (x.shape[0], self.f), "up": (x.shape[0], self.f), "out": tuple(x.shape)}
            self.room = {name: torch.empty(shape, dtype=x.dtype) for name, shape in shapes.items()}
        n, room = self.normed(x), self.room
        torch.mm(n, self.gate.weight.t(), out=room["gate"])
        torch.mm(n, self.up.weight.t(), out=room["up"])
        torch.nn.functional.silu(room["gate"], inplace=True)
        room["gate"].mul_(room["up"])
        torch.mm(room["gate"], self.down.weight.t(), out=room["out"])
        return room["out"].add_(x)
