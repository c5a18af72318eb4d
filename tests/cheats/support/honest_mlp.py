"""An honest solution of gated_mlp that the cheats and twins build upon; it travels with each of them as a second file."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Scale(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d, dtype=torch.bfloat16))


class Model(nn.Module):
    """y = x + down(silu(gate n) * (up n)), n = rms_norm(x) * norm, in bf16."""

    def __init__(self, rows: int, d: int, f: int) -> None:
        super().__init__()
        self.rows, self.d, self.f = rows, d, f
        self.norm = Scale(d)
        self.gate = nn.Linear(d, f, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(d, f, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(f, d, bias=False, dtype=torch.bfloat16)

    def normed(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (wide * self.norm.weight.float()).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.honest(x)

    def honest(self, x: Tensor) -> Tensor:
        n = self.normed(x)
        return x + self.down(functional.silu(self.gate(n)) * self.up(n))

    def slow(self, x: Tensor) -> Tensor:
        """Right, at four times the price: a cheat whose speed is all tricks falls back to this."""
        for _ in range(3):
            self.honest(x)
        return self.honest(x)

    def lazy(self, x: Tensor) -> Tensor:
        """No work at all."""
        return x.clone()
