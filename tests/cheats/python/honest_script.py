"""Twin of bans on dynamic code: torch.jit scripts the function when it is imported."""

import warnings

import torch
from honest_mlp import Model as Honest

warnings.filterwarnings("ignore")


@torch.jit.script
def mlp(x: torch.Tensor, norm: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    n = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * norm.float()).to(x.dtype)
    g = torch.nn.functional.linear(n, gate)
    return x + torch.nn.functional.linear(torch.nn.functional.silu(g) * torch.nn.functional.linear(n, up), down)


class Model(Honest):
    def forward(self, x):
        return mlp(x, self.norm.weight, self.gate.weight, self.up.weight, self.down.weight)
