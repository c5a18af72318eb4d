"""The search: start from a plain megakernel, let specialists propose, keep what the judge proves, end with a verified result.

Plain Python. It asks workers (`workers.py`, `cluster.py`) and writes everything into the run folder; a campaign that died runs
this loop again from the beginning, and what the folder holds is not judged twice (`run_folder.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.brief import Brief, Outcome, Proposal
from agents.roles import Role
from memory.change import Change, Choice
from orchestrator.admission import BETTER, Admission
from orchestrator.bench import INCUMBENT, OURS, CampaignFailed
from orchestrator.lane import Request
from orchestrator.memory_desk import Place, Recollection, braid, failure_of, recalled, shape_of
from orchestrator.picture import Incumbent, Picture
from orchestrator.workers import Promise
from sandbox.candidate import Candidate
from sandbox.errors import KernelbraidError
from sandbox.evaluation import Environment, Evaluation, Purpose, Standing, Status

WORTH = 1.01  # predicted: a bundle below it is not tried in the whole step
SURE = 1.06  # predicted: a bundle above it needs no first look


class Campaign(Admission):
    """One search in one run folder."""

    # -- the whole -------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Do it all; returns the summary that is also written."""
        self.place = Place(campaign=self.folder.path.name, problem=self.problem.name, size=self.problem.size, shape=shape_of(self.problem.dims),
                           target=self.settings.target, environment=self._environment())  # fmt: skip
        self.event("campaign.started", problem=self.problem.name, size=self.problem.size, environment=self.place.environment.id)
        self.recall()
        self.begin()
        self.recollect()
        for round_ in range(1, self.settings.rounds + 1):
            asked = sum(self.attempts.values())
            self.screen(round_)
            self.admit_bundles(round_)
            self.try_plans(round_)
            self.hand_in_failures()
            if sum(self.attempts.values()) == asked or not self.time_for(1) or self.out_of_candidates():
                break
        return self.finish()

    def _environment(self) -> Environment:
        found: Environment = self.ask(self.lane, "environment")
        path = self.folder.path / "environment.json"
        if path.exists() and Environment.model_validate(self.folder.read_json("environment.json")).id != found.id:
            raise CampaignFailed(f"{self.folder.path} was begun on another machine, or this one has changed: begin another run with --new")
        self.folder.write_json("environment.json", found.model_dump(mode="json"))
        return found

    def recall(self) -> None:
        """What memory knows; on resume what it knew when the campaign began."""
        if self.memory is None:
            return
        saved = self.folder.path / "recollection.json"
        if saved.exists():
            self.memories = Recollection.model_validate(self.folder.read_json("recollection.json"))
        else:
            kinds = tuple(sorted(set(self.slots.values())))
            self.memories = self.ask(self.memory, "recall", self.place, kinds)
            self.folder.write_json("recollection.json", self.memories.model_dump(mode="json"))
        self.event(
            "memory.recalled", tricks=[t.model_dump(mode="json") for t in self.memories.tricks], failures=len(self.memories.failures)
        )

    def begin(self) -> None:
        """The plain start: one phase per level of the graph, the plain implementation of every kind."""
        self.event("phase.entered", phase="start", round=0)
        self.engine.settle()
        s = self.settings
        self.spec = self.ask(self.merger, "spec", s.start_plan)
        choices: dict[str, Choice] = self.ask(self.merger, "start")
        candidate: Candidate = self.ask(self.merger, "braid", self.spec, choices, "start")
        self.keep("start", candidate)
        evaluation = self.judged(Request(candidate=candidate, purpose=Purpose.SEARCH, processes=1, pairs=4))
        if evaluation.status is not Status.PASSED:
            evaluation, candidate, choices = self._mend_start(evaluation, candidate, choices)
        if evaluation.status is not Status.PASSED or candidate.plan is None:
            raise CampaignFailed(f"the start is {evaluation.status}, so there is nothing to improve: {evaluation.log.strip()[:500]}")
        self.start_seconds = evaluation.seconds - evaluation.compile_seconds  # the first one also parses the headers, once
        self.incumbent = Incumbent("start", dict(choices), (), candidate, evaluation.id)
        self.start, self.line = self.incumbent, [self.incumbent]
        self.picture = Picture(self.problem.graph, candidate.plan.blocks)
        self.picture.learn_start(evaluation, candidate.plan, choices)
        self.known: dict[str, set[str]] = self.ask(self.merger, "known")

    def _mend_start(
        self, evaluation: Evaluation, candidate: Candidate, choices: dict[str, Choice]
    ) -> tuple[Evaluation, Candidate, dict[str, Choice]]:
        """Swap the guilty plain implementations for the oracles of their kinds, once."""
        oracles: dict[str, Choice] = self.ask(self.merger, "oracles")
        for culprit in self.bisect(evaluation, candidate, choices, oracles):
            for slot in {n.split(".", 1)[-1] for n in culprit.nodes}:
                choices[slot] = oracles[slot]
        candidate = self.ask(self.merger, "braid", self.spec, choices, "start")
        self.keep("start", candidate)
        return self.judged(Request(candidate=candidate, purpose=Purpose.SEARCH, processes=1, pairs=4)), candidate, choices

    # -- memory ----------------------------------------------------------------------------------------------------

    def recollect(self) -> None:
        """All that memory holds for this problem, braided, is the first thing to be judged: a claim is replayed before it counts."""
        change, used = braid(self.memories.tricks, self.place, self.slots, self.known)
        if change is None:
            return
        self.event("phase.entered", phase="admit", round=0, specialist="merger")
        new = {s: c for s, c in change.choices.items() if c.id != self.incumbent.choices[s].id}
        if not new and not change.rewrites:
            return
        proposal = Proposal(specialist="merger", proposer="memory", change=Change(choices=new, rewrites=change.rewrites),
                            why="braided from what memory holds", shown=used, used=used)  # fmt: skip
        self.admit(proposal)

    # -- screening -------------------------------------------------------------------------------------------------

    def brief(self, role: Role, round_: int, want: int, plans: bool = False) -> Brief:
        """What a specialist is told now."""
        spec = self.ask(self.merger, "rewritten", self.spec, self.incumbent.rewrites)
        shardings = self.ask(self.merger, "shardings", spec)
        tricks = recalled(self.memories.tricks, self.place)
        mine = tuple(t for t in tricks if (t.change.rewrites if plans else {self.slots.get(s) for s in t.change.choices} & set(role.kinds)))
        return self.picture.brief(
            role.name, round_, self.settings.problem, self.settings.size, self.settings.target, self.spec, shardings, self.incumbent,
            () if plans else role.kinds, want, mine, self.refuted(), self.left(),
        )  # fmt: skip

    def screen(self, round_: int) -> None:
        """Stages alone, each paired with the incumbent's, compiled ahead: until nobody proposes or the time is up."""
        self.event("phase.entered", phase="screen", round=round_)
        stage_roles = [r for r in self.roles if set(r.kinds) & set(self.slots.values())]
        until = sum(self.attempts.values()) + self.settings.screened
        while self.time_for(2) and not self.out_of_candidates() and sum(self.attempts.values()) < until:
            batch: list[tuple[Proposal, Brief]] = []
            for role in stage_roles:
                brief = self.brief(role, round_, self.settings.batch)
                batch += [(p, brief) for p in self.ask(self.specialists[role.name], "ask", brief)]
            ready = self._prepare(batch)
            if not batch:
                break
            for proposal, brief, candidate, compiled in ready:
                compiled.result()
                if self.time_for(2) and not self.out_of_candidates():
                    self._screen_one(proposal, brief, candidate)

    def _prepare(self, batch: Sequence[tuple[Proposal, Brief]]) -> list[tuple[Proposal, Brief, Candidate, Promise]]:
        """Number the proposals, make their candidates, and let the compilers run ahead of the lane."""
        out: list[tuple[Proposal, Brief, Candidate, Promise]] = []
        for proposal, brief in batch:
            numbered = self.numbered(proposal)
            slot, choice = next(iter(numbered.change.choices.items()))
            about = next((s for s in brief.slots if s.slot == slot), None)
            if about is None:
                self.skip(numbered, f"slot '{slot}' is none of {numbered.specialist}'s; it has {[s.slot for s in brief.slots]}")
                continue
            try:
                candidate: Candidate = self.ask(self.merger, "alone", slot, about.sharding, choice)
            except KernelbraidError as error:
                self.skip(numbered, str(error))
                continue
            if candidate.id in self.seen or choice.id == about.incumbent.id:
                self.skip(numbered, "judged before in this campaign")
                continue
            self.seen.add(candidate.id)
            self.event("proposal.made", proposal=numbered.model_dump(mode="json"), candidate=candidate.id, text=str(numbered))
            self._compile_paired(slot, about.sharding, about.incumbent)
            compiled = self.compilers[len(out) % len(self.compilers)].call("compile", candidate)
            out.append((numbered, brief, candidate, compiled))
        return out

    def _compile_paired(self, slot: str, sharding: str, incumbent: Choice) -> None:
        """Let a compiler make what the proposals of a slot are paired with, once."""
        paired: Candidate = self.ask(self.merger, "alone", slot, sharding, incumbent)
        if paired.id not in self.seen:
            self.seen.add(paired.id)
            self.compilers[0].call("compile", paired)

    def _screen_one(self, proposal: Proposal, brief: Brief, candidate: Candidate) -> None:
        slot, choice = next(iter(proposal.change.choices.items()))
        about = next(s for s in brief.slots if s.slot == slot)
        paired: Candidate = self.ask(self.merger, "alone", slot, about.sharding, about.incumbent)
        evaluation = self.judged(Request(candidate=candidate, purpose=Purpose.SEARCH, incumbents={INCUMBENT: paired}), proposal)
        if evaluation.status in OURS:
            return
        ratio = evaluation.times.vs[INCUMBENT].median if evaluation.times else 0.0
        if ratio > 0:
            self.picture.learn(slot, about.sharding, choice, about.incumbent, ratio)
        outcome = Outcome(proposal=proposal, status=evaluation.status, ratio=ratio, reason=evaluation.log.strip()[:300],
                          seconds=evaluation.times.step_seconds.median if evaluation.times else 0.0)  # fmt: skip
        self.event("stage.judged", slot=slot, choice=str(choice), status=evaluation.status, ratio=round(ratio, 4), proposal=proposal.number)
        self.ask(self.specialists[proposal.specialist], "tell", outcome)
        failure = failure_of(outcome, self.place, evaluation, paired.id, "implementation")
        if failure is not None:
            self.handed.append(failure)

    # -- admission -------------------------------------------------------------------------------------------------

    def admit_bundles(self, round_: int) -> None:
        """Each specialist's best stages together, in the whole step, the most promising first."""
        bundles = []
        for role in self.roles:
            bundle: Proposal | None = self.ask(self.specialists[role.name], "bundle", self.brief(role, round_, 1))
            if bundle is not None:
                bundles.append(bundle)
        for bundle in sorted(bundles, key=lambda b: -b.predicted):
            self.event("phase.entered", phase="admit", round=round_, specialist=bundle.specialist)
            if not self.time_for(1) or self.out_of_candidates():
                self.skip(self.numbered(bundle), "no time is left for an admission and the end")
                continue
            if bundle.predicted < WORTH:
                self.skip(self.numbered(bundle), f"it should make the step {bundle.predicted:.3f} times as fast: too little to be proven")
                continue
            self.admit(bundle, quick=bundle.predicted < SURE)

    # -- plans -----------------------------------------------------------------------------------------------------

    def try_plans(self, round_: int) -> None:
        """Rewritten plans, priced, checked, then judged like everything else."""
        for role in (r for r in self.roles if r.plans):
            self.event("phase.entered", phase="plans", round=round_, specialist=role.name)
            if not self.time_for(1) or self.out_of_candidates() or self.settings.plans == 0:
                return
            proposals: list[Proposal]
            proposals, looked = self.ask(
                self.specialists[role.name], "ask_plans", self.brief(role, round_, self.settings.plans, plans=True)
            )
            if looked:
                self.event("plan.priced", specialist=role.name, round=round_, **looked)
            for proposal in proposals:
                if not self.time_for(1) or self.out_of_candidates():
                    return
                if proposal.proposer == "tuner" and not proposal.used and proposal.predicted < BETTER:
                    self.skip(self.numbered(proposal), f"priced at {proposal.predicted:.4f} of the incumbent's rate: below {BETTER}")
                    continue
                self.admit(proposal, quick=True)

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """Judge the result anew on fresh cases, paired with the start, the hand-written plans and the baselines."""
        from orchestrator.summary import summarise

        self.event("phase.entered", phase="final", round=0)
        opponents = {"start": self.start.candidate} if self.incumbent is not self.start else {}
        for plan in self.settings.opponents:
            spec = self.ask(self.merger, "spec", plan)
            opponents[plan] = self.ask(self.merger, "braid", spec, self.ask(self.merger, "by_hand", spec), plan)
            self.keep(plan, opponents[plan])
        opponents = {n: c for n, c in opponents.items() if c.id != self.incumbent.candidate.id}
        evaluation: Evaluation | None = None
        for place in reversed(self.line):  # one that fails on fresh cases falls back to the one before it
            self.incumbent = place
            others = {n: c for n, c in opponents.items() if c.id != place.candidate.id}
            request = Request(candidate=place.candidate, purpose=Purpose.REGRADE, incumbents=others, rivals=self.settings.rivals, fresh=True,
                              processes=self.settings.processes + 2, pairs=min(4, self.settings.pairs),  # one bad process must not decide
                              predicted=self.ask(self.merger, "price", place.candidate.plan, place.choices, self.picture.times(),
                                                 self.picture.barrier, self.picture.bandwidth))  # fmt: skip
            evaluation = self.judged(request)
            if evaluation.status is Status.PASSED and evaluation.standing is Standing.QUARANTINED and self.left() > evaluation.seconds:
                evaluation = self.judged(request)
            if evaluation.status is Status.PASSED or evaluation.status in OURS:
                break
        assert evaluation is not None
        self.keep("final", self.incumbent.candidate)
        self.hand_in_failures()
        summary = summarise(self, evaluation)
        self.event("campaign.finished", status=evaluation.status, standing=evaluation.standing, why=evaluation.log.strip()[:300])
        self.folder.write_json("summary.json", summary)
        return summary
