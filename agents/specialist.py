"""A specialist: a role, a proposer, and what it has learnt in this campaign. Plain Python; an engine may put it in a process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from agents.brief import Brief, Outcome, Proposal, SlotBrief
from agents.plan_tuner import PlanTuner
from agents.roles import Role
from agents.script import Script
from agents.skills import Offer, load_offers
from agents.tuner import SlotTuner, log_ratio
from memory.change import Change, Choice

WORTH = 1.02  # a stage alone must be this much faster, by estimate, to enter a bundle
FALLOFF = 0.6  # every evaluation spent on a slot makes the next one there worth less


class Specialist:
    """Asks what to try next for the stages of its kinds, learns from what the judge says, and bundles the best."""

    def __init__(self, role: Role, roots: Sequence[Path], seed: int, patience: int = 6, script: Path | None = None) -> None:
        """patience: evaluations of a slot without a better one after which it is left alone."""
        self.role, self.seed, self.patience = role, seed, patience
        self.offers: list[Offer] = load_offers(roots)
        self.script = Script(script, role.name) if script else None
        self.plans = PlanTuner(role.name, seed) if role.plans else None
        self.tuners: dict[str, SlotTuner] = {}
        self.stale: dict[str, int] = {}  # slot -> evaluations since the last better one
        self.spent: dict[str, int] = {}
        self.base: dict[str, float] = {}  # slot -> value of the incumbent that outcomes are paired with
        self.held: dict[str, Choice] = {}
        self.kinds: dict[str, str] = {}
        self.shown: dict[str, tuple[str, ...]] = {}  # choice id -> tricks that suggested it

    # -- proposing -------------------------------------------------------------------------------------------------

    def ask(self, brief: Brief) -> list[Proposal]:
        """At most `brief.want` proposals for single stages, the stages that pay most first; [] when there is nothing left."""
        mine = [s for s in brief.slots if s.kind in self.role.kinds]
        for slot in mine:
            self._meet(slot, brief)
        if self.script is not None:
            return self.script.ask(brief, self.offers)
        out: list[Proposal] = []
        spent = dict(self.spent)
        while len(out) < brief.want:
            open_slots = [s for s in mine if not self.done(s.slot)]
            if not open_slots:
                break
            slot = max(open_slots, key=lambda s: (s.share * FALLOFF ** spent.get(s.slot, 0), s.slot))
            known = f"{slot.slot}/"
            choice = self.tuners[slot.slot].ask([r.removeprefix(known) for r in brief.refuted if r.startswith(known)])
            if choice is None:
                self.stale[slot.slot] = self.patience
                continue
            spent[slot.slot] = spent.get(slot.slot, 0) + 1
            used = self.shown.get(choice.id, ())
            out.append(
                Proposal(specialist=self.role.name, proposer="tuner", slot=slot.slot, change=Change(choices={slot.slot: choice}),
                         why="memory suggests it" if used else f"{slot.slot} takes {slot.share:.0%} of the predicted step",
                         shown=tuple(t.id for t in brief.tricks), used=used)
            )  # fmt: skip
        self.spent = spent
        return out

    def ask_plans(self, brief: Brief) -> tuple[list[Proposal], dict[str, float]]:
        """At most `brief.want` rewritten plans, best predicted first, and what the search looked at (plan.priced)."""
        if self.script is not None:
            return self.script.ask_plans(brief), {}
        return self.plans.ask(brief, self.offers) if self.plans else ([], {})

    def done(self, slot: str) -> bool:
        """Whether a slot has reached its plateau or has nothing new to try."""
        return self.stale.get(slot, 0) >= self.patience or self.tuners[slot].exhausted

    def bundle(self, brief: Brief) -> Proposal | None:
        """The best choice of every slot that is clearly better alone than the incumbent, as one change; None if there is none."""
        choices, saved, used = {}, 0.0, set()
        for slot in brief.slots:
            if slot.slot not in self.tuners:
                continue
            choice, gain = self._best(slot, brief)
            if choice.id == slot.incumbent.id or gain < -log_ratio(WORTH) or not choice.implementation:
                continue
            choices[slot.slot] = choice
            saved += slot.share * (1.0 - math.exp(-gain))
            used |= set(self.shown.get(choice.id, ()))
        if not choices:
            return None
        return Proposal(specialist=self.role.name, proposer="script" if self.script else "tuner", change=Change(choices=choices),
                        why=f"alone they are faster; the step should take {saved:.1%} less", predicted=1.0 / max(1e-3, 1.0 - saved),
                        shown=tuple(t.id for t in brief.tricks), used=tuple(sorted(used)))  # fmt: skip

    def _best(self, slot: SlotBrief, brief: Brief) -> tuple[Choice, float]:
        """A slot's best choice, and the log of how much faster it is than the incumbent. A slot in which nothing was tried takes
        what is best in the slot of its kind that weighs most: the whole step is judged in any case."""
        tuner = self.tuners[slot.slot]
        choice, value = tuner.best()
        if len(tuner.values) > 1:
            return choice, self.base[slot.slot] - value
        tried = [s for s in brief.slots if s.kind == slot.kind and len(self.tuners[s.slot].values) > 1]
        if not tried:
            return choice, 0.0
        model = max(tried, key=lambda s: (s.share, s.slot))
        found, value = self.tuners[model.slot].best()
        fits = found.id in tuner.space and (found.id not in tuner.asked or found.id in tuner.values)
        return (found, self.base[model.slot] - value) if fits else (choice, 0.0)

    # -- learning --------------------------------------------------------------------------------------------------

    def tell(self, outcome: Outcome) -> None:
        """What came of a proposal for one stage. Its ratio is against the incumbent of that time."""
        for slot, choice in outcome.proposal.change.choices.items():
            tuner = self.tuners.get(slot)
            if tuner is None or not outcome.proposal.slot:
                continue
            before = tuner.best()[1]
            value = self.base[slot] + log_ratio(outcome.ratio) if outcome.ratio > 0 else None
            tuner.tell(choice, value)
            better = tuner.best()[1] < before - 0.01
            for other, sibling in self.tuners.items():
                if other != slot and self.kinds[other] == self.kinds[slot]:
                    sibling.hint(choice, value)
                    if better:
                        sibling.suggest_first(choice)
            self.stale[slot] = 0 if better else self.stale.get(slot, 0) + 1

    def refute(self, slot: str, choice: Choice) -> None:
        """A choice that is good alone and fails in the megakernel: never bundle it again."""
        if slot in self.tuners:
            self.tuners[slot].tell(choice, None)

    def _meet(self, slot: SlotBrief, brief: Brief) -> None:
        """A tuner for a slot, the incumbent's value, and what memory suggests for it."""
        if slot.slot not in self.tuners:
            fits = [o for o in self.offers if o.implementation.kind == slot.kind and o.implementation.target == brief.target]
            self.tuners[slot.slot] = SlotTuner(slot.slot, fits, slot.sharding, slot.incumbent, self.seed)
            self.base[slot.slot] = 0.0
            self.held[slot.slot], self.kinds[slot.slot] = slot.incumbent, slot.kind
        tuner = self.tuners[slot.slot]
        if self.held[slot.slot].id != slot.incumbent.id:
            self.held[slot.slot] = slot.incumbent
            if slot.incumbent.id not in tuner.values:  # it came from another slot of the kind: what it gave there is the best guess
                guess = [t.values[slot.incumbent.id] for s, t in self.tuners.items()
                         if self.kinds[s] == slot.kind and slot.incumbent.id in t.values]  # fmt: skip
                if guess:
                    tuner.tell(slot.incumbent, guess[0])
            self.base[slot.slot] = tuner.values.get(slot.incumbent.id, self.base[slot.slot])
        for trick in brief.tricks:
            for name, choice in trick.change.choices.items():
                # A choice proven for another slot of the kind is worth a try, too: shapes differ more than kinds do.
                if name == slot.slot or choice.id in tuner.space:
                    tuner.suggest_first(choice)
                    self.shown.setdefault(choice.id, (trick.id,))
