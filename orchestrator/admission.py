"""From a proposal to the incumbent: braid it in, pair it in the whole step, admit what is proven, name who is guilty."""

from __future__ import annotations

from agents.brief import Outcome, Proposal
from memory.change import Change, Choice
from memory.trick import CPU_MARGIN, MIN_PROCESSES, TrickKind, refusal
from orchestrator.bench import INCUMBENT, OURS, Bench
from orchestrator.lane import Request
from orchestrator.memory_desk import failure_of, trick_of
from orchestrator.picture import Incumbent
from sandbox.candidate import Candidate, Implementation
from sandbox.errors import KernelbraidError
from sandbox.evaluation import Evaluation, Interval, Purpose, Standing, Status

BETTER = 1.005  # predicted or at a first look: below it a change is not worth an admission


class Admission(Bench):
    """How a change of the whole step is judged and what follows."""

    def admit(self, proposal: Proposal, quick: bool = False) -> bool:
        """Put a change into the whole step, paired with the incumbent; whether it became the incumbent.

        quick: a look over few processes first, for changes that only a model vouches for."""
        proposal = self.numbered(proposal)
        choices = self.incumbent.choices | proposal.change.choices
        rewrites = proposal.change.rewrites or self.incumbent.rewrites
        name = f"{len(self.line)}-{proposal.specialist}-{proposal.number}"
        try:
            spec = self.ask(self.merger, "rewritten", self.spec, rewrites)
            candidate: Candidate = self.ask(self.merger, "braid", spec, choices, name)
        except KernelbraidError as error:
            self.skip(proposal, str(error))
            return False
        if candidate.id == self.incumbent.candidate.id:
            self.skip(proposal, "it changes nothing")
            return False
        if proposal.change.id in self.refuted() and not proposal.used:
            self.skip(proposal, "memory knows that it fails here")
            return False
        if (candidate.id, self.incumbent.candidate.id) in self.tried:
            self.skip(proposal, "it was tried against this incumbent before")
            return False
        self.tried.add((candidate.id, self.incumbent.candidate.id))
        self.event("proposal.made", proposal=proposal.model_dump(mode="json"), candidate=candidate.id, text=str(proposal))
        evaluation = self._first_look(candidate, proposal) if quick else None
        if evaluation is None:
            evaluation = self._paired(candidate, proposal, self.settings.processes)
        elif evaluation.status is Status.PASSED or evaluation.status in OURS:
            return False
        if evaluation.status not in (Status.PASSED, *OURS):
            if not proposal.change.rewrites:
                return self._without_the_guilty(proposal, evaluation, candidate, choices)
            self._learnt(proposal, evaluation, None)
            return False
        why_not = refusal(evaluation, INCUMBENT)
        ratio = evaluation.times.vs[INCUMBENT] if evaluation.times else None
        if why_not and ratio is not None and ratio.median > 1.02 and self.settings.processes >= MIN_PROCESSES and self.time_for(2):
            # The median says yes and the interval is too wide: once more, over twice as many processes.
            evaluation = self._paired(candidate, proposal, 2 * self.settings.processes)
            why_not, ratio = refusal(evaluation, INCUMBENT), evaluation.times.vs[INCUMBENT] if evaluation.times else None
        self.admissions.append(evaluation.seconds)
        self.picture.learn_barrier(evaluation)
        return self._settle(proposal, candidate, evaluation, choices, ratio, why_not)

    def _paired(self, candidate: Candidate, proposal: Proposal, processes: int) -> Evaluation:
        predicted = self.ask(self.merger, "price", candidate.plan, self._choices_after(proposal), self.picture.times(),
                             self.picture.barrier, self.picture.bandwidth)  # fmt: skip
        request = Request(candidate=candidate, purpose=Purpose.ADMIT, incumbents={INCUMBENT: self.incumbent.candidate},
                          processes=processes, pairs=self.settings.pairs, predicted=predicted)  # fmt: skip
        return self.judged(request, proposal)

    def _choices_after(self, proposal: Proposal) -> dict[str, Choice]:
        return self.incumbent.choices | proposal.change.choices

    def _first_look(self, candidate: Candidate, proposal: Proposal) -> Evaluation | None:
        """Two process pairs: enough to drop what is clearly no better, not to prove anything. None if it deserves an admission,
        else the evaluation that says why not."""
        request = Request(candidate=candidate, purpose=Purpose.SEARCH, incumbents={INCUMBENT: self.incumbent.candidate}, processes=2,
                          pairs=self.settings.pairs)  # fmt: skip
        evaluation = self.judged(request, proposal)
        ratio = evaluation.times.vs[INCUMBENT] if evaluation.times else None
        if evaluation.status is Status.PASSED and ratio is not None and ratio.median > BETTER:
            return None
        if evaluation.status is Status.PASSED and ratio is not None:
            self._learnt(proposal, evaluation, ratio)
            said = f"a first look says {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
            self.event("trick.refused", specialist=proposal.specialist, proposal=proposal.number, candidate=candidate.id, why=said)
        return evaluation

    def _without_the_guilty(self, proposal: Proposal, evaluation: Evaluation, candidate: Candidate, choices: dict[str, Choice]) -> bool:
        """Name the slots that break the megakernel, refute them, and try once more with the others."""
        self.event("trick.refused", specialist=proposal.specialist, proposal=proposal.number, candidate=candidate.id,
                   why=f"status is {evaluation.status}: {evaluation.log.strip()[:200]}")  # fmt: skip
        guilty = {n.split(".", 1)[-1] for c in self.bisect(evaluation, candidate, choices, self.incumbent.choices) for n in c.nodes}
        if not guilty & set(proposal.change.choices):  # nobody by himself, or the plan or the runtime: nothing is known of any stage
            self._learnt(proposal, evaluation, None)
            return False
        for slot in guilty & set(proposal.change.choices):
            bad = proposal.model_copy(update={"slot": slot, "change": Change(choices={slot: proposal.change.choices[slot]})})
            self._learnt(bad, evaluation, None)
            if proposal.specialist in self.specialists:
                self.ask(self.specialists[proposal.specialist], "refute", slot, proposal.change.choices[slot])
        rest = {s: c for s, c in proposal.change.choices.items() if s not in guilty}
        if not rest or not self.time_for(1):
            return False
        return self.admit(proposal.model_copy(update={"change": Change(choices=rest), "why": f"without {', '.join(sorted(guilty))}"}))

    def _learnt(self, proposal: Proposal, evaluation: Evaluation, ratio: Interval | None) -> None:
        """A change of the whole step that did not become the incumbent."""
        if evaluation.status in OURS:
            return  # nothing was learnt about it
        outcome = Outcome(proposal=proposal, status=evaluation.status, ratio=ratio.median if ratio else 0.0,
                          reason=evaluation.log.strip()[:300])  # fmt: skip
        kind: TrickKind = "plan" if proposal.change.rewrites else "megakernel"
        if ratio is not None and (evaluation.standing is not Standing.CONFIRMED or ratio.high > CPU_MARGIN):
            failure = None  # not proven is not refuted
        else:
            failure = failure_of(outcome, self.place, evaluation, self.incumbent.candidate.id, kind)
        if failure is not None:
            self.handed.append(failure)
        self.credit(proposal, "failed" if evaluation.status is not Status.PASSED else "no_difference", ratio)

    def _settle(self, proposal: Proposal, candidate: Candidate, evaluation: Evaluation, choices: dict[str, Choice], ratio: Interval | None,
                why_not: str) -> bool:  # fmt: skip
        """Admit to memory what is proven; take as incumbent what is better at all; remember the rest as no help."""
        if not why_not and self.memory is not None and ratio is not None:
            chosen: dict[str, Implementation] = {s: self.ask(self.merger, "implementation", c) for s, c in proposal.change.choices.items()}
            trick = trick_of(proposal, proposal.change, self.place, evaluation, self.incumbent.candidate, chosen, self.slots)
            why_not = self.ask(self.memory, "admit", trick, evaluation, INCUMBENT)
            if not why_not:
                self.tricks.append(trick.id)
                kept = self.ask(self.memory, "get", trick.id)
                self.event("trick.admitted", specialist=proposal.specialist, proposal=proposal.number,
                           trick=kept.model_dump(mode="json") | {"id": kept.id})  # fmt: skip
        elif not why_not:
            why_not = "this campaign keeps no memory"
        if why_not:
            self.event("trick.refused", specialist=proposal.specialist, proposal=proposal.number, candidate=candidate.id, why=why_not)
        better = evaluation.status is Status.PASSED and evaluation.standing is Standing.CONFIRMED and ratio is not None and ratio.low > 1.0
        if not better or ratio is None:
            self._learnt(proposal, evaluation, ratio)
            return False
        self.credit(proposal, "helped", ratio)
        rewrites = proposal.change.rewrites or self.incumbent.rewrites
        self.incumbent = Incumbent(candidate.name, choices, rewrites, candidate, evaluation.id, self.incumbent.speedup * ratio.median)
        self.line.append(self.incumbent)
        self.keep(candidate.name, candidate)
        self.event(
            "incumbent.changed", megakernel=candidate.name, candidate=candidate.id, evaluation=evaluation.id, specialist=proposal.specialist,
            proposal=proposal.number, change=proposal.change.model_dump(mode="json"), text=str(proposal.change),
            ratio={"median": ratio.median, "low": ratio.low, "high": ratio.high}, speedup=self.incumbent.speedup,
            all_to_alls=candidate.plan.all_to_alls if candidate.plan else None,
        )  # fmt: skip
        return True
