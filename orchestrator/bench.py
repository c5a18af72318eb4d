"""What a campaign works with: its run folder, its workers and its budget; every evaluation goes through `judged`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agents.brief import Proposal
from agents.merger import Culprit, Merger
from agents.roles import Role, load_roles
from agents.specialist import Specialist
from memory.change import Choice
from memory.trick import Failure, Use, UseOutcome
from orchestrator.lane import Compiler, Lane, Request
from orchestrator.memory_desk import Librarian, Place, Recollection
from orchestrator.picture import Incumbent, Picture
from orchestrator.run_folder import RunFolder
from orchestrator.settings import CampaignSettings
from orchestrator.workers import Engine, Worker
from sandbox.candidate import Candidate
from sandbox.errors import KernelbraidError
from sandbox.evaluation import Evaluation, Interval, Purpose, Status, evaluation_key
from sandbox.problem import Problem

INCUMBENT = "incumbent"
FINAL_WEIGHT = 3.0  # the end takes about so many times as long as an admission
OURS = (Status.INFRASTRUCTURE, Status.UNAVAILABLE)


class CampaignFailed(KernelbraidError):
    """The campaign cannot go on; the message says why."""


@dataclasses.dataclass
class Places:
    """Folders and switches of this machine that are no settings of the search."""

    cache: Path
    memory: Path
    unsafe: bool = False


class Bench:
    """Run folder, workers, budget, and where the search stands."""

    place: Place
    spec: dict[str, Any]  # the start plan
    start: Incumbent
    incumbent: Incumbent
    picture: Picture
    known: dict[str, set[str]]  # Implementation name -> ids that the skills offer
    start_seconds: float

    def __init__(self, settings: CampaignSettings, folder: RunFolder, engine: Engine, places: Places, roots: Sequence[Path],
                 tell: Callable[[dict[str, Any]], None]) -> None:  # fmt: skip
        """tell: gets every event that is written, for the terminal."""
        self.settings, self.folder, self.places, self.tell, self.engine = settings, folder, places, tell, engine
        s = settings
        self.problem = Problem.load(s.problem, s.size)
        self.slots = {n.short: n.kind for n in self.problem.graph.nodes}
        self.roles: list[Role] = load_roles(s.specialists)
        script = Path(s.script) if s.script else None
        self.lane = engine.worker("lane", Lane, str(places.cache), s.problem, s.size, s.threads, s.seeds, places.unsafe)
        self.compilers = [
            engine.worker(f"compiler-{i}", Compiler, str(places.cache), s.threads, places.unsafe, parallel=True) for i in range(s.compilers)
        ]
        self.merger = engine.worker("merger", Merger, s.problem, s.size, s.threads, roots)
        self.specialists: dict[str, Worker] = {
            r.name: engine.worker(r.name, Specialist, r, roots, s.seed, s.patience, script, remember=("ask", "ask_plans", "tell", "refute"))
            for r in self.roles
        }
        self.memory = engine.worker("memory", Librarian, str(places.memory)) if s.memory else None
        self.number = 0
        self.attempts: dict[tuple[str, Purpose], int] = {}
        self.seen: set[str] = set()  # stage candidates that were judged
        self.tried: set[tuple[str, str]] = set()  # (candidate, incumbent) pairs of whole steps
        self.tricks: list[str] = []
        self.admissions: list[float] = []  # seconds of each
        self.handed: list[Failure] = []
        self.line: list[Incumbent] = []
        self.memories = Recollection()

    # -- small things ----------------------------------------------------------------------------------------------

    def event(self, event: str, **fields: Any) -> None:
        """Write an event, and show it if it is new."""
        written = self.folder.event(event, **fields)
        if written is not None:
            self.tell(written)

    def ask(self, worker: Worker, method: str, *args: Any) -> Any:
        """Call and wait."""
        return worker.call(method, *args).result()

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return 60.0 * self.settings.minutes - self.folder.elapsed()

    def out_of_candidates(self) -> bool:
        """Whether as many were judged as may be, the end left out."""
        return sum(self.attempts.values()) >= self.settings.candidates - 1

    def judged(self, request: Request, proposal: Proposal | None = None, specialist: str = "") -> Evaluation:
        """One evaluation, from the folder if it holds it. What was ours to mend is tried once more."""
        base = self.attempts.get((request.candidate.id, request.purpose), 0)
        for attempt in (base + 1, base + 2):
            self.attempts[request.candidate.id, request.purpose] = attempt
            evaluation = self._once(request.model_copy(update={"attempt": attempt}), proposal, specialist)
            if evaluation.status not in OURS:
                return evaluation
        return evaluation

    def _once(self, request: Request, proposal: Proposal | None, specialist: str) -> Evaluation:
        c = request.candidate
        key = evaluation_key(c.id, self.problem.name, self.problem.size, self.place.environment.id, request.purpose, request.attempt)
        about = {"key": key, "candidate": c.id, "name": c.name, "purpose": request.purpose, "attempt": request.attempt}
        known = self.folder.recorded(key)
        self.event("evaluation.started", **about)
        kept = known if known is not None else self.folder.record(self.ask(self.lane, "evaluate", request))
        self.event(
            "evaluation.completed", **about, evaluation=kept.id, status=kept.status, standing=kept.standing, seconds=round(kept.seconds, 2),
            step_us=round(1e6 * kept.times.step_seconds.median, 2) if kept.times else None,
            proposal=proposal.number if proposal else None, specialist=specialist or (proposal.specialist if proposal else ""),
        )  # fmt: skip
        return kept

    def bisect(self, evaluation: Evaluation, candidate: Candidate, choices: dict[str, Choice], good: dict[str, Choice]) -> list[Culprit]:
        """Who is guilty; every variant that was judged on the way is recorded. In a second life the first one's answer stands."""
        before = self.folder.told("bisection.ended", candidate=candidate.id)
        if before is not None:
            for key in before["keys"]:
                self.folder.recorded(key)
            return [Culprit(c["implementation"], c["kind"], tuple(c["nodes"]), c["evaluations"]) for c in before["culprits"]]
        chosen, last = self.ask(self.merger, "resolve", choices), self.ask(self.merger, "resolve", good)
        culprits: list[Culprit]
        culprits, tried = self.ask(self.lane, "bisect", evaluation, candidate, chosen, last)
        for variant in tried:
            about = {"key": variant.key, "candidate": variant.candidate, "name": variant.candidate_name, "purpose": variant.purpose,
                     "attempt": variant.attempt}  # fmt: skip
            self.event("evaluation.started", **about)
            kept = self.folder.recorded(variant.key) or self.folder.record(variant)
            self.event("evaluation.completed", **about, evaluation=kept.id, status=kept.status, standing=kept.standing, proposal=None,
                       seconds=round(kept.seconds, 2), step_us=None, specialist="merger")  # fmt: skip
        guilty = [f"{c.implementation or c.kind} in {', '.join(c.nodes) or 'every stage'}" for c in culprits]
        self.event("bisection.ended", candidate=candidate.id, name=candidate.name, guilty=guilty, variants=len(tried),
                   keys=[v.key for v in tried], culprits=[dataclasses.asdict(c) for c in culprits])  # fmt: skip
        return culprits

    def time_for(self, admissions: int) -> bool:
        """Whether so many admissions and the end still fit into the budget."""
        one = max(self.admissions) if self.admissions else 2.5 * self.start_seconds
        return self.left() > one * (admissions + FINAL_WEIGHT)

    def numbered(self, proposal: Proposal) -> Proposal:
        """The proposal with the next number of this campaign."""
        self.number += 1
        return proposal.model_copy(update={"number": self.number})

    def skip(self, proposal: Proposal, why: str) -> None:
        """Say that a proposal costs nothing because it is not judged."""
        self.event("proposal.skipped", proposal=proposal.model_dump(mode="json"), why=why[:500], text=str(proposal))

    def refuted(self) -> tuple[str, ...]:
        """What memory knows to fail here: ids of Implementations for single stages, of changes for plans."""
        out = []
        for failure in self.memories.failures:
            out.append(failure.change.id if not failure.slot else f"{failure.slot}/{next(iter(failure.change.choices.values())).id}")
        return tuple(dict.fromkeys(out))

    def credit(self, proposal: Proposal, outcome: UseOutcome, ratio: Interval | None) -> None:
        """Say of every trick that a proposal used what came of it."""
        if self.memory is not None and proposal.used:
            uses = [
                Use(trick=t, campaign=self.place.campaign, proposal=proposal.number, outcome=outcome, ratio=ratio) for t in proposal.used
            ]
            self.ask(self.memory, "used", uses)

    def hand_in_failures(self) -> None:
        """Give memory what did not work since the last time."""
        if self.memory is not None and self.handed:
            self.ask(self.memory, "fail", self.handed)
        self.handed = []

    def keep(self, name: str, candidate: Candidate) -> None:
        """A megakernel's source and plan as files of the run."""
        self.folder.write(f"kernels/{name}.cpp", candidate.source)
        if candidate.plan is not None:
            self.folder.write_json(f"kernels/{name}.plan.json", candidate.plan.model_dump(mode="json"))
