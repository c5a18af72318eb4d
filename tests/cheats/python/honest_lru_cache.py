"""Twin of memos: functools.lru_cache on constants that depend on sizes alone, never on values."""

import functools

import torch
from honest_mlp import Model as Honest
from torch.nn import functional


@functools.cache
def edges(f, parts):
    return tuple(f * k // parts for k in range(parts + 1))


@functools.cache
def epsilon(dtype):
    return torch.tensor(1e-6, dtype=dtype)


class Model(Honest):
    def forward(self, x):
        wide = x.float()
        n = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon(torch.float32)) * self.norm.weight.float()).to(x.dtype)
        at, total = edges(self.f, 4), torch.zeros(x.shape)
        for begin, end in zip(at, at[1:], strict=False):
            part = functional.silu(functional.linear(n, self.gate.weight[begin:end])) * functional.linear(n, self.up.weight[begin:end])
            total += functional.linear(part.float(), self.down.weight[:, begin:end].float())
        return (x.float() + total).to(x.dtype)
