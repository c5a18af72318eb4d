"""The built-in proposer: it asks everything once, the best first if it can, and never forgets the start."""

from __future__ import annotations

import math

import pytest

from agents.skills import Offer, load_offers
from agents.tuner import SlotTuner, log_ratio
from memory.change import Choice
from sandbox.candidate import Implementation


def offers(knobs: int = 4) -> list[Offer]:
    made = []
    for name in ("a", "b"):
        m = Implementation(name=name, kind="k", target="cpu", source=f"// {name}", knobs={"X": 1, "Y": 1})
        values = list(range(1, knobs + 1))
        made.append(
            Offer.model_validate({"implementation": m, "skill": "s", "knobs": {k: {"default": 1, "values": values} for k in ("X", "Y")}})
        )
    made.append(Offer(implementation=Implementation(name="o", kind="k", target="cpu", source="// o", oracle=True), skill="s"))
    return made


def tuner(seed: int = 0) -> SlotTuner:
    start = Choice.of(offers()[0].implementation)
    return SlotTuner("slot", offers(), "whole", start, seed)


def value(choice: Choice) -> float:
    """b with X = 3, Y = 2 is best."""
    return (0.5 if choice.implementation == "a" else 0.0) + 0.1 * abs(choice.knobs["X"] - 3) + 0.1 * abs(choice.knobs["Y"] - 2) - 0.4


def test_everything_is_asked_once_and_the_oracle_never() -> None:
    t, seen = tuner(), []
    while (choice := t.ask()) is not None:
        seen.append(choice)
        t.tell(choice, value(choice))
    assert len(seen) == len({c.id for c in seen}) == 2 * 16 - 1, "all but the start"
    assert {c.implementation for c in seen} == {"a", "b"}
    assert t.exhausted
    best, v = t.best()
    assert (best.implementation, best.knobs, v) == ("b", {"X": 3, "Y": 2}, pytest.approx(-0.4))


def test_it_learns() -> None:
    """Half of the space is enough to come near the best, on most seeds; blind order would need luck."""
    good = 0
    for seed in range(10):
        t = tuner(seed)
        for _ in range(15):
            choice = t.ask()
            assert choice is not None
            t.tell(choice, value(choice))
        good += t.best()[1] <= -0.3
    assert good >= 8


def test_the_same_seed_asks_the_same() -> None:
    runs = []
    for _ in range(2):
        t, order = tuner(7), []
        for _ in range(8):
            choice = t.ask()
            assert choice is not None
            order.append(choice.id)
            t.tell(choice, value(choice))
        runs.append(order)
    assert runs[0] == runs[1]


def test_what_memory_suggests_comes_first_and_what_is_refuted_never() -> None:
    t = tuner()
    first = Choice.of(offers()[1].with_knobs(X=3, Y=2))
    bad = [m.id for m in offers()[1].variants() if m.knobs["X"] == 1]
    assert t.suggest_first(first)
    assert not t.suggest_first(Choice(implementation="gone", id="gone"))
    assert t.ask(bad) == first
    asked = {c.id for c in iter(lambda: t.ask(bad), None)}
    assert not asked & set(bad)


def test_without_anything_better_the_start_is_best() -> None:
    t = tuner()
    choice = t.ask()
    assert choice is not None
    t.tell(choice, None)
    assert t.best() == (Choice.of(offers()[0].implementation), 0.0)


def test_a_ratio_becomes_a_value() -> None:
    assert log_ratio(2.0) == pytest.approx(-math.log(2))


def test_the_built_in_skills_leave_something_to_find() -> None:
    """Every kind that moves much has two different Implementations besides its oracle, with a knob."""
    found = [o for o in load_offers() if o.implementation.target == "cpu" and not o.implementation.oracle]
    for kind in ("linear_w4", "expert_up", "expert_down", "kda_state", "attend"):
        mine = [o for o in found if o.implementation.kind == kind]
        assert len({o.implementation.source for o in mine}) >= 2, kind
        assert sum(len(o.variants()) for o in mine) >= 4 and any(o.knobs for o in mine), kind
