"""The built-in proposer for stages: ask/tell search (Optuna's TPE) over Implementations and their knobs, one study per slot.

A value is log(seconds / seconds of the campaign's start) of the stage alone, so less is better. What memory proved elsewhere is
asked first. No configuration is asked twice: what the sampler repeats is answered from what is known."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from typing import Any

from agents.skills import Offer
from memory.change import Choice
from sandbox.candidate import Implementation

FAILED = 1.5  # the value of a configuration without a time: as if it were 4.5 times slower than the start
TRIES = 12


class SlotTuner:
    """Search over what the skills offer for one slot."""

    def __init__(self, slot: str, offers: Sequence[Offer], sharding: str, start: Choice, seed: int) -> None:
        """offers: those of the slot's kind and target. start: what the campaign began with; its value is 0."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.slot = slot
        self.offers = {o.implementation.name: o for o in offers if o.implementation.accepts(sharding) and not o.implementation.oracle}
        self.space: dict[str, Implementation] = {m.id: m for o in self.offers.values() for m in o.variants()}
        self.values: dict[str, float] = {start.id: 0.0}
        self.asked: set[str] = {start.id}
        self.first: list[str] = []
        self._random = random.Random(f"{seed}/{slot}")
        sampler = optuna.samplers.TPESampler(seed=self._random.randrange(2**31), n_startup_trials=4)
        self._study = optuna.create_study(sampler=sampler)
        self._optuna = optuna
        if start.id in self.space:
            self._add(start.id, 0.0)

    @property
    def exhausted(self) -> bool:
        """Whether everything that the skills offer was asked."""
        return self.asked >= set(self.space)

    def suggest_first(self, choice: Choice) -> bool:
        """Ask this before anything else; False if it is not in the space or was asked before."""
        if choice.id not in self.space or choice.id in self.asked or choice.id in self.first:
            return False
        self.first.append(choice.id)
        return True

    def ask(self, refuted: Collection[str] = ()) -> Choice | None:
        """The next configuration, or None if all were asked. refuted: ids of Implementations that are known to fail here."""
        for known in sorted(set(refuted) & set(self.space) - self.asked):
            self.asked.add(known)
            self._add(known, FAILED)
        while self.first:
            chosen = self.first.pop(0)
            if chosen not in self.asked:
                return self._take(chosen)
        for _ in range(TRIES):
            if self.exhausted:
                return None
            trial = self._study.ask()
            found = self._of(trial)
            if found.id not in self.asked:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)  # the value comes with `tell`, as a trial of its own
                return self._take(found.id)
            self._study.tell(trial, self.values.get(found.id, 0.0))
        left = sorted(set(self.space) - self.asked)
        return self._take(self._random.choice(left)) if left else None

    def tell(self, choice: Choice, value: float | None) -> None:
        """The value of a configuration; None if it has no time."""
        self.asked.add(choice.id)
        self.values[choice.id] = FAILED if value is None else value
        if choice.id in self.space:
            self._add(choice.id, self.values[choice.id])

    def hint(self, choice: Choice, value: float | None) -> None:
        """What a configuration gave in another slot of the same kind: the sampler learns from it, and it may still be asked here."""
        if choice.id in self.space and choice.id not in self.asked:
            self._add(choice.id, FAILED if value is None else value)

    def best(self) -> tuple[Choice, float]:
        """The best configuration so far and its value."""
        known = {i: v for i, v in self.values.items() if i in self.space} or self.values
        winner = min(known, key=lambda i: (known[i], i))
        return Choice.of(self.space[winner]) if winner in self.space else Choice(implementation="", id=winner), known[winner]

    def _take(self, chosen: str) -> Choice:
        self.asked.add(chosen)
        return Choice.of(self.space[chosen])

    def _of(self, trial: Any) -> Implementation:
        name = trial.suggest_categorical("implementation", sorted(self.offers))
        offer = self.offers[name]
        knobs = {k: trial.suggest_categorical(f"{name}/{k}", list(knob.values)) for k, knob in offer.knobs.items()}
        return offer.with_knobs(**knobs)

    def _add(self, chosen: str, value: float) -> None:
        """Show the sampler a configuration with its value."""
        m = self.space[chosen]
        distributions: dict[str, Any] = {"implementation": self._optuna.distributions.CategoricalDistribution(sorted(self.offers))}
        params: dict[str, Any] = {"implementation": m.name}
        for knob, allowed in self.offers[m.name].knobs.items():
            distributions[f"{m.name}/{knob}"] = self._optuna.distributions.CategoricalDistribution(list(allowed.values))
            params[f"{m.name}/{knob}"] = m.knobs[knob]
        self._study.add_trial(self._optuna.trial.create_trial(params=params, distributions=distributions, value=value))


def log_ratio(ratio: float) -> float:
    """The value of a configuration `ratio` times as fast as the start."""
    return -math.log(ratio)
