"""Twin of comparing with one fixed order of sums: other products, column by column blocks, the norm folded behind the first product."""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    def forward(self, x):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        weighted = (x.float() * self.norm.weight.float()).to(x.dtype)
        gate, up = torch.einsum("rd,fd->rf", weighted, self.gate.weight), torch.einsum("rd,fd->rf", weighted, self.up.weight)
        gate, up = gate.float() * scale, up.float() * scale
        wide = (gate / (1 + torch.exp(-gate)) * up).to(x.dtype)
        halves = [wide[:, k::2] @ self.down.weight[:, k::2].t() for k in range(2)]
        return (x.float() + halves[0].float() + halves[1].float()).to(x.dtype)
