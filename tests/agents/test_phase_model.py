"""The price of a plan: worked by hand on the real graph, and what it must say about the hand-written plans."""

from __future__ import annotations

import pytest

from agents.phase_model import PhaseModel, StageTimes, roofline_class
from agents.planner import expand, read_plan
from agents.rewrites import Spec, apply_all
from memory.change import Rewrite
from sandbox.candidate import Implementation
from sandbox.errors import PlanError
from sandbox.graph import Node
from sandbox.plan import Plan
from sandbox.problem import Problem

SMALL = Problem.load("kimi_linear_decode", "small")
BARRIER, FLAG, BANDWIDTH = 1e-6, 3e-7, 40e9
KNOWN = Implementation(name="x/y", kind="linear_w4", target="cpu", source="s")
SLOTS = {n.short for n in SMALL.graph.nodes}
CHOICES = dict.fromkeys(SLOTS, KNOWN)


def plan(name: str, blocks: int, *rewrites: Rewrite) -> Plan:
    spec: Spec = apply_all(read_plan(SMALL.plan_file(name)), rewrites, SMALL.graph, blocks)
    return expand(spec, SMALL.graph, blocks, "cpu")


def model(blocks: int, seconds: dict[tuple[str, str], float], bandwidth: float = float("inf")) -> PhaseModel:
    """Unmeasured stages cost nothing unless a bandwidth is given."""
    times = StageTimes(blocks)
    for (slot, split), value in seconds.items():
        times.record(slot, split, KNOWN.id, value)
    return PhaseModel(SMALL.graph, times, BARRIER, bandwidth, FLAG)


def test_a_phase_is_its_stages_and_a_barrier() -> None:
    m = model(2, {("qkvg", "heads"): 50e-6, ("beta", "rows"): 2e-6, ("emit", "whole"): 4e-6})
    price = m.price(plan("unfused", 2), CHOICES)
    assert price["kda0.projections"] == pytest.approx(53e-6)
    assert price["kda0.norm"] == pytest.approx(1e-6)
    assert price["emit"] == pytest.approx(4e-6), "no barrier ends the launch"
    assert m.total(plan("unfused", 2), CHOICES) == pytest.approx(3 * 52e-6 + 4e-6 + 41 * 1e-6)


@pytest.mark.parametrize(
    ("place", "blocks", "cost"),
    [
        ("replicated", 2, 20e-6),  # twice the work of its share
        ("replicated", 4, 40e-6),  # 16 heads on 4 blocks: alone each did a quarter
        ("block 0", 2, 20e-6),
        ("round_robin", 2, 10e-6),
        ("round_robin", 4, 10e-6),
        ("replicated", 32, 160e-6),  # no more blocks work than there are items
    ],
)
def test_what_a_place_costs(place: str, blocks: int, cost: float) -> None:
    moved = plan("unfused", blocks, Rewrite(kind="place", section="mla", subject="q", to=place))
    price = model(blocks, {("q", "heads"): 10e-6}).price(moved, CHOICES)
    assert price["mla3.projections"] == pytest.approx(cost + BARRIER)


def test_an_uneven_deal_waits_for_the_fullest_block() -> None:
    # 4 slices over 3 blocks: alone the slowest block had 2; now 4 in one block take twice as long.
    m = model(3, {("s_up", "slices"): 6e-6})
    assert m.price(plan("unfused", 3), CHOICES)["moe0.router"] == pytest.approx(7e-6)
    alone = plan("unfused", 3, Rewrite(kind="place", section="moe", subject="s_up", to="block 0"))
    assert m.price(alone, CHOICES)["moe0.router"] == pytest.approx(13e-6)


def test_blocks_that_do_different_things_at_once_are_not_added_up() -> None:
    # rope, one item on block 0, beside absorb dealt over both blocks: block 0 has both, block 1 only its half of absorb.
    m = model(2, {("rope", "whole"): 5e-6, ("absorb", "heads"): 10e-6, ("append", "whole"): 3e-6, ("attend", "heads"): 8e-6})
    price = m.price(plan("unfused", 2, Rewrite(kind="place", section="mla", subject="absorb", to="block 1")), CHOICES)
    assert price["mla3.absorb"] == pytest.approx(20e-6 + BARRIER), "block 1 does all of absorb while block 0 does rope"


def test_a_flag_has_its_own_price() -> None:
    m = model(2, {})
    price = m.price(plan("fused_flag", 2), CHOICES)
    assert price["mla3.heads"] == pytest.approx(BARRIER + FLAG)
    assert price["kda0.heads"] == pytest.approx(BARRIER)


def test_what_was_not_measured_is_taken_from_another_split_then_from_bytes() -> None:
    node = SMALL.graph.by_name["L0.o_proj"]  # 8 tiles of columns, 16 rows
    other = Implementation(name="x/z", kind="linear_w4", target="cpu", source="t")
    times = StageTimes(2)
    times.record("o_proj", "columns", KNOWN.id, 8e-6)
    assert times.item_seconds(node, "columns", KNOWN.id, BANDWIDTH) == pytest.approx(2e-6)
    assert times.item_seconds(node, "rows", KNOWN.id, BANDWIDTH) == pytest.approx(1e-6), "twice the items, half the work each"
    assert times.item_seconds(node, "columns", other.id, BANDWIDTH) == pytest.approx(node.bytes / 8 / 20e9)
    whole = PhaseModel(SMALL.graph, StageTimes(2), BARRIER, BANDWIDTH, FLAG).price(plan("unfused", 2), {})
    assert whole["kda0.o_proj"] == pytest.approx(node.bytes / BANDWIDTH + BARRIER)


def test_a_split_that_the_implementation_does_not_take_has_no_price() -> None:
    narrow = KNOWN.model_copy(update={"shardings": ("columns",)})
    m, choices = model(2, {}), CHOICES | {"o_proj": narrow}
    assert m.total(plan("unfused", 2), choices) > 0
    with pytest.raises(PlanError, match="does not run under the split 'rows'"):
        m.total(plan("fused", 2), choices)


def test_fewer_barriers_are_worth_it_when_barriers_cost_and_not_when_they_are_free() -> None:
    def gain(barrier: float) -> float:
        m = PhaseModel(SMALL.graph, StageTimes(2), barrier, BANDWIDTH, barrier)
        return m.total(plan("unfused", 2), {}) - m.total(plan("fused", 2), {})

    assert gain(1e-6) > 0 > gain(0.0), "fused repeats kv_a, which costs without barriers to save"
    assert gain(5e-6) == pytest.approx(gain(0.0) + 33 * 5e-6)


def test_what_limits_a_stage() -> None:
    def of(node: Node) -> str:
        return roofline_class(node, BANDWIDTH, 1e12, BARRIER)

    by_name = SMALL.graph.by_name
    assert {of(by_name[f"L0.{s}"]) for s in ("qkvg", "kda_state", "up", "down")} == {"memory-bound"}
    assert {of(by_name[n]) for n in ("L0.attn_norm", "L0.topk", "L3.rope", "L3.append", "emit")} == {"chain"}
    assert of(by_name["L0.beta"]) == of(by_name["L0.router"]) == "latency-bound"
    assert roofline_class(by_name["L3.attend"], BANDWIDTH, 1e11, BARRIER) == "compute-bound"
