"""The legality checker rule by rule, and its happens-before against an explicit closure."""

from __future__ import annotations

import random
from typing import Any

import networkx as nx
import pytest

from sandbox.errors import IllegalPlan
from sandbox.graph import PortBox, StageGraph
from sandbox.legality import Machine, check_plan, default_positions, require_legal
from sandbox.legality_model import Model
from sandbox.plan import Wait
from tests.sandbox.plan_facts import Case, base
from tests.sandbox.plan_variants import VARIATIONS


def broken(case: Case, **options: Any) -> set[str]:
    """Letters of the rules that a plan breaks."""
    return {v.rule for v in check_plan(case.plan, case.graph, **options)}


def with_box(case: Case, node: str, sharding: str, port: str, box: PortBox) -> Case:
    """The same plan for a graph in which one port has another box."""
    nodes = []
    for n in case.graph.nodes:
        if n.name == node:
            changed = n.shardings[sharding].model_copy(update={"boxes": {**n.shardings[sharding].boxes, port: box}})
            n = n.model_copy(update={"shardings": {**n.shardings, sharding: changed}})
        nodes.append(n)
    return Case(case.plan, StageGraph(name=case.graph.name, tensors=case.graph.tensors, nodes=tuple(nodes)))


def test_messages_name_the_place() -> None:
    case = base("tiny_mla", "fused_flag", 4)
    case = case.with_step("L0.rope", waits=())
    with pytest.raises(IllegalPlan) as refusal:
        require_legal(case.plan, case.graph)
    first = refusal.value.violations[0]
    for part in ("(d)", "phase mla0.heads", "L0.rope", "item 0", "block", "L0.kva[0:", "L0.kv_a"):
        assert part in first


def test_c_boxes_must_tile() -> None:
    case = base("tiny_kda", "fused", 2)
    assert broken(with_box(case, "L0.qkvg", "heads", "y", PortBox(size=256, mode="own"))) >= {"c"}  # gaps at the end
    assert broken(with_box(case, "L0.qkvg", "heads", "y", PortBox(mode="own"))) >= {"c"}  # every item the whole tensor
    assert broken(with_box(case, "L0.qkvg", "heads", "y", PortBox(size=1024, mode="own"))) == {"c"}  # past the end


def test_d_a_state_box_of_two_owners() -> None:
    case = base("kda_block", "fused", 2)
    whole = with_box(case, "L0.kda_state", "heads", "S", PortBox(mode="state"))
    assert broken(whole) >= {"c"}
    assert any("blocks.0.S" in v.message for v in check_plan(whole.plan, whole.graph))
    strided = PortBox(size=128, rows=3, stride=128, mode="state")  # taps of one head over channels of the next heads
    assert broken(with_box(case, "L0.conv", "heads", "cq", strided)) == {"c", "e"}


def test_d_the_appended_row_and_the_rows_read() -> None:
    case = base("tiny_mla", "fused", 4)
    assert {0, 1, 63, 64, 65, 2048} <= set(default_positions(case.graph))
    assert broken(case, positions=range(0, 300, 7)) == set()
    # A cache that is changed whole is read by others at the same time: no row is safe.
    changed = with_box(case, "L0.append", "whole", "c_kv", PortBox(mode="state"))
    assert broken(changed) == {"e"}
    # Half a row is not a row.
    assert broken(with_box(case, "L0.append", "whole", "c_kv", PortBox(size=64, mode="append")), positions=[5]) == {"c"}


def test_routing_is_in_no_item_wait_or_box() -> None:
    case = base("tiny_mla", "unfused", 4)
    node = case.graph.by_name["L0.up"]
    sharding = node.shardings["slices"]
    # Chosen in the same phase by another block: the ids are not there when the pages are chosen.
    late = case.moved("L0.up", case.at()["L0.topk"][0], 1)
    found = check_plan(late.plan, late.graph)
    assert any(v.rule == "d" and "its pages are chosen by it" in v.message for v in found)
    # The highest expert's units end where the packed units end; a port that carries no ids chooses nothing.
    for update in ({"selects": "nothing"}, {"period": 2, "units": 7}):
        other = node.model_copy(update={"shardings": {"slices": sharding.model_copy(update=update)}})
        nodes = tuple(other if n.name == "L0.up" else n for n in case.graph.nodes)
        graph = StageGraph(name=case.graph.name, tensors=case.graph.tensors, nodes=nodes)
        assert broken(Case(case.plan, graph)) == {"d"}


def test_a_a_wait_before_its_signal_hangs() -> None:
    """In one block it is a cycle. Block 1 alone could still signal if it does not wait, but idle blocks may wait too."""
    case = base("tiny_kda", "unfused", 2)
    first, second = case.plan.phases[1].steps
    case = case.with_step(first.node, owner=(0,) * len(first.owner), waits=(Wait(event="e", count=1),))
    for block in (0, 1):
        late = case.with_step(second.node, owner=(block,) * len(second.owner), signals=("e",))
        assert broken(late) == {"a"}
        in_order = late.with_phase(1, steps=late.plan.phases[1].steps[::-1])
        assert broken(in_order) == set()


def test_b_nothing_is_concluded_from_blocks_that_run_no_item() -> None:
    """Block 1 has no item of the step that waits, so its later reads are not ordered by that wait."""
    case = base("tiny_mla", "fused_flag", 2)
    wait = case.step("L0.rope").waits
    one = case.with_step("L0.rope", waits=()).with_step("L0.attn_norm", waits=())
    p, i = one.at()["L0.append"]  # runs in block 0 alone
    moved = one.moved("L0.append", p, one.at()["L0.kv_a"][1] + 1).with_step("L0.append", waits=wait)
    reads = [v.message for v in check_plan(moved.plan, moved.graph) if "L0.rope" in v.message and "reads L0.kva" in v.message]
    assert len(reads) == 1 and "step L0.rope, item 0 (block 1) reads L0.kva" in reads[0]


def test_e_two_blocks_may_share_a_copy_where_adds_are_atomic() -> None:
    case = base("kda_block", "fused", 2, "cuda").with_buffer("L0.y", copies=1, copy_of=(0, 0))
    assert broken(case) == {"c"}  # block 0 zeroes when block 1 may already add
    first = case.plan.phases[0].model_copy(update={"name": "zero", "steps": ()})
    early = case.but(phases=(first, case.plan.phases[0].model_copy(update={"zero": ()}), *case.plan.phases[1:]))
    assert broken(early) == set()
    assert broken(early.but(target="cpu")) == {"e"}


def test_g_replicated_steps_read_the_same_words() -> None:
    """Private data of single owners is not the same in every block: a router that is repeated may not use it."""
    case = base("tiny_kda", "fused", 2).with_step("L0.moe_norm", replicated=False, owner=(1,))
    assert broken(case) >= {"c", "g"}


def test_h_limits() -> None:
    case = base("tiny_kda", "fused", 4)
    assert broken(case, limits=Machine(blocks=4)) == set()
    assert broken(case, limits=Machine(blocks=3)) == {"h"}
    held = [case.graph.tensors[t].bytes for t, b in case.plan.buffers.items() if b.home == "private"]
    assert broken(case, limits=Machine(blocks=4, private_bytes=sum(held))) == set()
    assert broken(case, limits=Machine(blocks=4, private_bytes=sum(held)), scratch={"L0.conv": 1}) == {"h"}
    assert broken(case, limits=Machine(blocks=4, workspace_bytes=1000)) == {"h"}


def test_i_dropped_roundings_are_listed() -> None:
    case = base("tiny_kda", "fused", 2)
    drops = {"L0.qkvg": ["x to bf16 before qkvg"]}
    assert broken(case, numerics=drops) == {"i"}
    assert broken(case.but(dropped_roundings=("x to bf16 before qkvg",)), numerics=drops) == {"i"}  # no error given
    assert broken(case.but(dropped_roundings=("x to bf16 before qkvg: 1.2e-3 rms",)), numerics=drops) == set()


def test_c_another_graph_or_too_few_ids() -> None:
    case = base("tiny_kda", "fused", 2)
    assert broken(Case(case.plan, base("tiny_mla", "fused", 2).graph)) == {"c"}


# -- happens-before ----------------------------------------------------------------------------------------------


def closure(case: Case, model: Model) -> set[tuple[Any, Any]]:
    """Every ordered pair of (block, position), through an explicit graph of program order, barriers and events."""
    g = nx.DiGraph()
    for b in range(case.plan.blocks):
        nx.add_path(g, [(b, p) for p in range(model.end + 1)])
        for p in model.barriers:
            g.add_edge((b, p), ("barrier", p))
            g.add_edge(("barrier", p), (b, p + 1))
    for run in model.runs:
        for b in run.blocks.tolist():
            g.add_edges_from(((b, run.pos), ("event", e)) for e in run.step.signals)
            g.add_edges_from((("event", w.event), (b, run.pos)) for w in run.step.waits)
    assert nx.is_directed_acyclic_graph(g)
    return set(nx.transitive_closure_dag(g).edges)


def test_clocks_agree_with_the_closure() -> None:
    """Vector clocks and barrier marks say the same as reachability, for every pair of steps in every pair of blocks."""
    rng, compared, by_event = random.Random(3), 0, 0
    for size, file in (("tiny_mla", "fused_flag"), ("kda_block", "unfused"), ("kda_block", "fused")):
        for blocks in (2, 3):
            for _ in range(4):
                case = base(size, file, blocks)
                for variation in rng.choices(VARIATIONS, k=6):
                    case = variation(case, rng) or case
                model = Model(case.plan, case.graph)
                pairs = closure(case, model)
                runs = model.runs
                for first in runs:
                    for second in runs:
                        clock = model.knows(second.pos)
                        for c in first.blocks.tolist():
                            for b in second.blocks.tolist():
                                told = clock is not None and bool(clock[b, c] >= first.pos)
                                by_event += told
                                said = model.barrier_between(first.pos, second.pos) or (b == c and first.pos < second.pos) or told
                                assert said == (((c, first.pos), (b, second.pos)) in pairs), (first.where, c, second.where, b)
                                compared += 1
    assert compared > 10_000 and by_event > 100
