"""An honest solution of kimi_linear_decode under its public step contract: the problem's bf16 baseline (package `plain`) behind it."""

import torch
from plain.baseline import MaterialisingBaseline
from plain.definition import Dims, weight_specs
from torch import nn

KINDS = {"K": "kda", "M": "mla"}


def place(root, name, tensor):
    """A buffer under a dotted name."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    root.register_buffer(last, tensor)


class Model(nn.Module):
    plain = None

    def __init__(self, cfg):
        super().__init__()
        self.dims = Dims(
            hidden=cfg.hidden, heads=cfg.kda_heads, head_dim=cfg.kda_head_dim, kv_lora=cfg.kv_lora, nope=cfg.qk_nope, rope=cfg.qk_rope,
            v_dim=cfg.v_head, experts=cfg.n_experts, top_k=cfg.n_active, ffn=cfg.moe_inter, context=0,
            layers=tuple(KINDS[letter] for letter in cfg.pattern), group=cfg.group, theta=cfg.rope_theta, route_scale=cfg.routed_scaling,
        )  # fmt: skip
        for spec in weight_specs(self.dims):
            shape = (1, *spec.shape) if ".moe.s_" in spec.name else spec.shape
            place(self, spec.name, torch.empty(shape, dtype=spec.torch_dtype))

    def position(self, state):
        return next(part["c_kv"].shape[0] for part in state if "c_kv" in part)

    def step(self, hidden, state):
        return self.honest(hidden, state)

    def honest(self, hidden, state):
        if self.plain is None:
            weights = {name: tensor[0] if ".moe.s_" in name else tensor for name, tensor in self.state_dict().items()}
            self.plain = MaterialisingBaseline(self.dims, weights)
        flat = {f"blocks.{i}.{name}": tensor for i, part in enumerate(state) for name, tensor in part.items()}
        with hidden.device:  # the baseline makes its tables on the default device
            out = self.plain.step(hidden, flat, self.position(state))
        return out, [{name: flat[f"blocks.{i}.{name}"] for name in part} for i, part in enumerate(state)]
