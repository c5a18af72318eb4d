"""The public contracts: an honest solution module driven through `contract.build` does what the problem's baseline does, bit for bit."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.problems.gated_mlp import contract as mlp_contract
from experiments.problems.gated_mlp import definition as mlp
from experiments.problems.gated_mlp import interface as mlp_interface
from experiments.problems.gated_mlp.baseline import Baseline
from experiments.problems.kimi_linear_decode import contract as kimi_contract
from experiments.problems.kimi_linear_decode import interface as kimi_interface
from experiments.problems.kimi_linear_decode.baseline import MaterialisingBaseline
from experiments.problems.kimi_linear_decode.definition import KDA_BLOCK, TINY, Dims, make_weights, weight_specs
from experiments.problems.kimi_linear_decode.probes import probe_overlays

CPU = torch.device("cpu")
STEPS = 3
PUBLIC_FIELDS = (
    *("hidden", "kda_heads", "kda_head_dim", "short_conv", "mla_heads", "kv_lora", "qk_nope", "qk_rope", "v_head", "rope_theta"),
    *("n_experts", "n_active", "n_shared", "moe_inter", "routed_scaling", "group", "pattern", "dtype"),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def solution(**members: Any) -> ModuleType:
    module = ModuleType("solution")
    vars(module).update(members)
    return module


class StepModel(nn.Module):
    """A step-contract solution on the baseline's mathematics; it learns sizes, weights and position from the contract alone."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        assert cfg.n_shared == 1 and cfg.dtype == torch.bfloat16
        self.dims = Dims(
            hidden=cfg.hidden, heads=cfg.kda_heads, head_dim=cfg.kda_head_dim, kv_lora=cfg.kv_lora, nope=cfg.qk_nope, rope=cfg.qk_rope,
            v_dim=cfg.v_head, experts=cfg.n_experts, top_k=cfg.n_active, ffn=cfg.moe_inter, context=0, group=cfg.group,
            theta=cfg.rope_theta, route_scale=cfg.routed_scaling, layers=tuple({"K": "kda", "M": "mla"}[kind] for kind in cfg.pattern),
        )  # fmt: skip
        self.rows_seen: list[int] = []
        for spec in weight_specs(self.dims):
            shape = (1, *spec.shape) if ".moe.s_" in spec.name else spec.shape
            *path, last = spec.name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in dict(owner.named_children()):
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_buffer(last, torch.zeros(shape, dtype=spec.torch_dtype))

    def step(self, hidden: Tensor, state: list[dict[str, Tensor]]) -> tuple[Tensor, list[dict[str, Tensor]]]:
        weights = {name: tensor[0] if ".moe.s_" in name else tensor for name, tensor in self.state_dict().items()}
        position = next(block["c_kv"].shape[0] for block in state if "c_kv" in block)
        self.rows_seen.append(position)
        flat = {f"blocks.{i}.{name}": tensor for i, block in enumerate(state) for name, tensor in block.items()}
        made = MaterialisingBaseline(self.dims, weights).step(hidden, flat, position)
        return made, [{name: flat[f"blocks.{i}.{name}"] for name in block} for i, block in enumerate(state)]


class Scale(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d, dtype=torch.bfloat16))


class ForwardModel(nn.Module):
    """A forward-contract solution, written as anybody would."""

    def __init__(self, rows: int, d: int, f: int) -> None:
        super().__init__()
        self.shape = (rows, d)
        self.norm = Scale(d)
        self.gate = nn.Linear(d, f, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(d, f, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(f, d, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Any:
        assert x.shape == self.shape
        wide = x.float()
        n = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + mlp.EPS) * self.norm.weight.float()
        n = n.bfloat16()
        return x + self.down(functional.silu(self.gate(n)) * self.up(n))


class InTuple(ForwardModel):
    def forward(self, x: Tensor) -> Any:
        return (super().forward(x),)


@pytest.mark.parametrize("probe", ["ordinary", "mla_sharp", "one_expert"])
@torch.no_grad()
def test_a_step_solution_equals_the_baseline_over_three_steps(probe: str) -> None:
    weights = make_weights(TINY, 31)
    weights |= {"ordinary": {}, **probe_overlays(TINY, weights, 6)}[probe]
    start = kimi_interface.start(TINY, TINY.context, 17)
    capacity = TINY.context + STEPS + 2
    padded = {
        name: torch.cat((t, torch.full((capacity - t.shape[0], *t.shape[1:]), 7.0, dtype=t.dtype))) if kimi_interface.growing(name) else t
        for name, t in start.state.items()
    }
    given = {name: t.clone() for name, t in padded.items()}
    built = kimi_contract.build(solution(Model=StepModel), TINY, weights, CPU)
    bound: Any = built.bind(given, TINY.context)
    for block, kind in zip(bound, TINY.layers, strict=True):
        assert list(block) == (["S", "cq", "ck", "cv"] if kind == "kda" else ["c_kv", "k_rope"])
        if kind == "mla":
            assert all(t.shape[0] == TINY.context and t.is_contiguous() for t in block.values())
            assert not {t.data_ptr() for t in block.values()} & {t.data_ptr() for t in given.values()}
    baseline, own = MaterialisingBaseline(TINY, weights), {name: t.clone() for name, t in start.state.items()}
    inputs, token = dict(start.inputs), start.inputs["token"]
    for index in range(STEPS):
        made, bound = built.call(inputs, bound, TINY.context + index)
        token = baseline.step(token, own, TINY.context + index)
        assert list(made) == ["hidden"] and torch.equal(made["hidden"], token)
        inputs = {"token": made["hidden"]}
    left = built.unbind(bound)
    assert left.keys() == own.keys() == padded.keys()
    assert all(torch.equal(left[name], own[name]) for name in own)
    assert left["blocks.3.c_kv"].shape[0] == TINY.context + STEPS
    assert built._model.rows_seen == [TINY.context + i for i in range(STEPS)]
    assert kimi_interface.verify_chain(TINY, weights, start, TINY.context, [], None) == ("", 0)


@torch.no_grad()
def test_a_step_solution_may_begin_without_a_context() -> None:
    weights, start = make_weights(TINY, 31), kimi_interface.start(TINY, 0, 17)
    built = kimi_contract.build(solution(Model=StepModel), TINY, weights, CPU)
    made, bound = built.call(start.inputs, built.bind(dict(start.state), 0), 0)
    own = {name: t.clone() for name, t in kimi_interface.start(TINY, 0, 17).state.items()}
    assert torch.equal(made["hidden"], MaterialisingBaseline(TINY, weights).step(start.inputs["token"], own, 0))
    assert built.unbind(bound)["blocks.3.k_rope"].shape == (1, TINY.rope)


def test_the_configuration_has_the_public_fields() -> None:
    cfg = kimi_contract.config(TINY)
    assert all(hasattr(cfg, name) for name in PUBLIC_FIELDS)
    assert cfg.pattern == ("K", "K", "K", "M") and cfg.short_conv == 4 and cfg.dtype == torch.bfloat16
    with pytest.raises(AttributeError):
        cfg.hidden = 1  # type: ignore[misc]


@torch.no_grad()
def test_chains_of_the_step_contract_are_verified() -> None:
    """A chain by the contract is accepted with its state; a stale token, a wrong state and values that are not finite are refused."""
    weights, start = make_weights(TINY, 31), kimi_interface.start(TINY, TINY.context, 23)
    built = kimi_contract.build(solution(Model=StepModel), TINY, weights, CPU)
    bound: Any = built.bind({name: t.clone() for name, t in start.state.items()}, TINY.context)
    made, inputs = [], dict(start.inputs)
    for index in range(8):
        step, bound = built.call(inputs, bound, TINY.context + index)
        made.append(step)
        inputs = {"token": step["hidden"]}
    state = built.unbind(bound)

    def verdict(outputs: list[dict[str, Tensor]], left: dict[str, Tensor] | None) -> tuple[str, int]:
        return kimi_interface.verify_chain(TINY, weights, start, TINY.context, outputs, left)

    assert verdict(made, state) == verdict(made, None)
    fault, compared = verdict(made, state)
    assert fault == "" and compared > 0
    scaled = {**state, "blocks.0.S": state["blocks.0.S"] * 1.1}
    assert verdict(made, scaled)[0].startswith("blocks.0.S after a timed chain of 8 steps")
    assert "relative errors" in verdict([{"hidden": step["hidden"] * 1.1} for step in made], None)[0]
    infinite = [{"hidden": torch.full_like(step["hidden"], float("inf"))} for step in made]
    assert verdict(infinite, None) == ("step 0 of a timed chain has outputs that are not finite", 0)


def test_a_solution_without_a_step_model_is_told_so() -> None:
    weights = make_weights(TINY, 31)
    with pytest.raises(ValueError, match="no class Model"):
        kimi_contract.build(solution(), TINY, weights, CPU)
    with pytest.raises(ValueError, match="no method step"):
        kimi_contract.build(solution(Model=lambda cfg: nn.Module()), TINY, weights, CPU)
    with pytest.raises(RuntimeError, match=r"blocks\.0\.attn_norm"):
        kimi_contract.build(solution(Model=StepModel), TINY, {k: v for k, v in weights.items() if k != "blocks.0.attn_norm"}, CPU)
    with pytest.raises(ValueError, match="another size"):
        kimi_contract.build(solution(Model=StepModel), KDA_BLOCK, {}, CPU)


class OnInstance(ForwardModel):
    """As compilers and graphs leave it: forward is an attribute of the instance."""

    def __init__(self, rows: int, d: int, f: int) -> None:
        super().__init__(rows, d, f)
        own = super().forward
        self.forward = lambda x: own(x)  # type: ignore[method-assign]


@pytest.mark.parametrize("model", [ForwardModel, InTuple, OnInstance])
@torch.no_grad()
def test_a_forward_solution_equals_the_baseline_over_three_steps(model: type[nn.Module]) -> None:
    dims = mlp.SIZES["tiny"]
    weights, start = mlp.make_weights(dims, 31), mlp_interface.start(dims, 0, 17)
    built = mlp_contract.build(solution(Model=model), dims, weights, CPU)
    bound: Any = None
    built.bind({}, 0)
    x = own = start.inputs["x"]
    baseline, outputs = Baseline(dims, weights), []
    for index in range(STEPS):
        made, bound = built.call({"x": x}, bound, index)
        x, own = made["y"], baseline.call({"x": own}, {}, index)["y"]
        assert list(made) == ["y"] and torch.equal(x, own)
        outputs.append(made)
    assert built.unbind(bound) == {}
    assert mlp_interface.verify_chain(dims, weights, start, 0, outputs, {}) == ("", STEPS)


class Narrow(ForwardModel):
    def __init__(self, rows: int, d: int, f: int) -> None:
        super().__init__(rows, d, f // 2)


class Biased(ForwardModel):
    def __init__(self, rows: int, d: int, f: int) -> None:
        super().__init__(rows, d, f)
        self.down = nn.Linear(f, d, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({}, "no class Model"),
        ({"Model": lambda rows, d, f: object()}, r"no torch\.nn\.Module"),
        ({"Model": lambda rows, d, f: nn.Module()}, "no method forward"),
        ({"Model": Narrow}, r"do not fit.*gate\.weight \[512, 256\]"),
        ({"Model": Biased}, r"do not fit.*down\.bias"),
    ],
)
def test_a_module_without_a_fitting_forward_model_is_told_so(members: dict[str, Any], says: str) -> None:
    dims = mlp.SIZES["tiny"]
    with pytest.raises(ValueError, match=f"(?s){says}") as caught:
        mlp_contract.build(solution(**members), dims, mlp.make_weights(dims, 1), CPU)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize(
    ("returned", "says"), [(None, "returned NoneType"), ((1, 2), "a tuple of 2"), (("y",), "returned str"), ([torch.zeros(1)], "list")]
)
def test_a_forward_that_returns_no_tensor_is_told_so(returned: Any, says: str) -> None:
    class Odd(ForwardModel):
        def forward(self, x: Tensor) -> Any:
            return returned

    dims = mlp.SIZES["tiny"]
    built = mlp_contract.build(solution(Model=Odd), dims, mlp.make_weights(dims, 1), CPU)
    with pytest.raises(ValueError, match=says) as caught:
        built.call({"x": mlp.make_input(dims, 1)}, None, 0)
    assert type(caught.value) is ValueError
