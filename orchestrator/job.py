"""The main job: judge the stages, assemble the plans, judge the megakernels, admit what was proven."""

from __future__ import annotations

import concurrent.futures
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from agents.merger import Bisection, failing, merge, pick
from agents.planner import load_plan
from agents.skills import choose, load_implementations
from memory.trick import Trick, admit, refusal
from orchestrator.run_folder import RunFolder
from sandbox.box_errors import CompileFailed, CompileLimit
from sandbox.candidate import Candidate, Implementation
from sandbox.checking import CheckPlan, Prepared, prepare_checks
from sandbox.errors import ProblemError
from sandbox.evaluation import Evaluation, Interval, Purpose, Status
from sandbox.judge import Judge, JudgeLimits
from sandbox.plan import Plan
from sandbox.problem import Problem
from sandbox.stage_alone import stage_candidate
from sandbox.timing import Effort

log = structlog.get_logger()
Say = Callable[[str], None]
BARRIER_SECONDS = 1e-6  # assumed cost of one grid barrier between CPU threads, in predictions only


@dataclass(frozen=True)
class JobSettings:
    """What the main job does; resolved, no optionals."""

    problem: str = "kimi_linear_decode"
    size: str = "small"
    plans: tuple[str, ...] = ("unfused", "fused")
    rivals: tuple[str, ...] = ("baseline", "torch_best")
    stages: bool = True
    checks: CheckPlan = field(default_factory=CheckPlan)
    effort: Effort = field(default_factory=Effort)

    def check(self) -> None:
        """Refuse what cannot be run, before anything is made. Raises ProblemError."""
        problem = Problem.load(self.problem, self.size)
        known = problem.spec.baselines
        for rival in self.rivals:
            if rival not in known:
                raise ProblemError(f"problem '{self.problem}' has no baseline '{rival}'; it has {sorted(known)}")
        for plan in self.plans:
            problem.plan_file(plan)


@dataclass
class Outcome:
    """What the job found; `summary` is the JSON object printed last."""

    evaluations: list[Evaluation] = field(default_factory=list)
    stages: list[tuple[str, Evaluation]] = field(default_factory=list)
    plans: dict[str, tuple[Plan, Candidate, Evaluation]] = field(default_factory=dict)
    admitted: int = 0
    summary: dict[str, Any] = field(default_factory=dict)


class Job:
    """One run of the main job in one run folder."""

    def __init__(self, settings: JobSettings, judge: Judge, folder: RunFolder, memory: Path, say: Say) -> None:
        self.settings, self.judge, self.folder, self.memory, self.say = settings, judge, folder, memory, say
        self.problem = Problem.load(settings.problem, settings.size)
        self.graph = self.problem.graph
        self.implementations = load_implementations()
        self.outcome = Outcome()
        self.started = time.monotonic()

    def run(self) -> Outcome:
        """Do it all; returns what was found."""
        self.say(f"weights of {self.problem.name}/{self.problem.size}: drawing them from a secret seed if they are not cached")
        self.problem.weights_file(self.judge.cache)
        plans = {name: load_plan(self.problem.plan_file(name), self.graph, self.judge.threads) for name in self.settings.plans}
        seconds = self.judge_stages(plans) if self.settings.stages else {}
        best = self.best_implementations()
        for name, plan in plans.items():
            self.judge_plan(name, plan, best, seconds)
        self.admit()
        self.outcome.summary = self.summarise()
        self.folder.write_json("summary.json", self.outcome.summary)
        return self.outcome

    # -- stages --------------------------------------------------------------------------------------------------

    def stage_uses(self, plans: Mapping[str, Plan]) -> dict[tuple[str, str], str]:
        """(stage without layer, sharding) -> a node to judge it at: the last layer that has it."""
        uses = {}
        for plan in plans.values():
            for _, step in plan.steps():
                node = self.graph.by_name[step.node]
                uses[node.short, step.sharding] = node.name
        return uses

    def judge_stages(self, plans: Mapping[str, Plan]) -> dict[tuple[str, str], float]:
        """Judge every stage alone, as the plans split it. Returns seconds by (stage, sharding)."""
        uses = self.stage_uses(plans)
        candidates = {}
        for (short, sharding), node in uses.items():
            impl = choose(self.implementations, self.graph.by_name[node].kind, "cpu")
            candidates[short, sharding] = (impl, stage_candidate(self.graph, node, sharding, impl, self.judge.threads))
        self.say(f"judging {len(candidates)} stages alone: against the reference at that point, then cold times")
        self.compile_ahead([c for _, c in candidates.values()])
        limits = JudgeLimits(checks=CheckPlan(seeds=2))
        seconds = {}
        for (short, sharding), (_, candidate) in candidates.items():
            evaluation = self.record(self.judge.evaluate(candidate, self.problem, limits))
            self.outcome.stages.append((f"{short} / {sharding}", evaluation))
            self.judge.progress(f"  {short} / {sharding}: {evaluation.status}")
            if evaluation.times is not None:
                seconds[short, sharding] = evaluation.times.step_seconds.median
            else:
                self.say(f"  {short} / {sharding}: {evaluation.status}: {evaluation.log.strip()[:300]}")
        return seconds

    def compile_ahead(self, candidates: list[Candidate]) -> None:
        """Fill the compile cache with all cores before anything is timed; failures show when the candidate is judged."""

        def one(candidate: Candidate) -> None:
            try:
                self.judge.compile(candidate)
            except (CompileFailed, CompileLimit) as error:
                log.info("candidate.compile_failed", candidate=candidate.name, error=str(error)[:200])

        with concurrent.futures.ThreadPoolExecutor(self.judge.threads) as pool:
            list(pool.map(one, candidates))

    def best_implementations(self) -> dict[str, Implementation]:
        """By kind: the fast implementation if every stage that uses it passed, else the scalar oracle."""
        failed = {e.node for _, e in self.outcome.stages if e.status is not Status.PASSED}
        best = {}
        for node in self.graph.nodes:
            if node.kind not in best:
                bad = any(self.graph.by_name[f].kind == node.kind for f in failed)
                best[node.kind] = choose(self.implementations, node.kind, "cpu", oracle=bad)
        return best

    # -- plans ---------------------------------------------------------------------------------------------------

    def predict(self, plan: Plan, seconds: Mapping[tuple[str, str], float]) -> dict[str, float]:
        """Seconds per phase: the stages' times alone, added up; a repeated stage costs every block all of its items."""
        predicted = {}
        for phase in plan.phases:
            total = BARRIER_SECONDS if phase.barrier else 0.0
            for step in phase.steps:
                node = self.graph.by_name[step.node]
                alone = seconds.get((node.short, step.sharding), 0.0)
                items = node.shardings[step.sharding].items
                total += alone * (min(plan.blocks, items) if step.replicated else 1)
            predicted[phase.name] = total
        return predicted

    def judge_plan(self, name: str, plan: Plan, best: dict[str, Implementation], seconds: Mapping[tuple[str, str], float]) -> None:
        """Check, assemble, write down and judge one plan; pairs the last one with the rivals and the plans before it.

        A megakernel that fails is bisected; the guilty kind falls back to its oracle and the plan is judged once more."""
        with tempfile.TemporaryDirectory(prefix="kernelbraid-") as scratch:
            checks = prepare_checks(self.problem, self.judge.weights(self.problem), self.settings.checks, Path(scratch))
            candidate, evaluation = self.try_plan(name, plan, best, seconds, checks)
            if evaluation.status not in (Status.PASSED, Status.INFRASTRUCTURE, Status.UNAVAILABLE):
                evaluation = self.name_the_guilty(plan, best, evaluation, checks)
                if evaluation.guilty:
                    self.record(evaluation)
                    candidate, evaluation = self.try_plan(name, plan, best, seconds, checks)
            self.outcome.plans[name] = (plan, candidate, self.record(evaluation))

    def try_plan(self, name: str, plan: Plan, best: Mapping[str, Implementation], seconds: Mapping[tuple[str, str], float],
                 checks: Sequence[Prepared]) -> tuple[Candidate, Evaluation]:  # fmt: skip
        """Assemble a plan from the best implementations and judge it."""
        candidate = merge(self.graph, plan, pick(self.graph, self.implementations, "cpu", best=best), name=f"{name}@{plan.blocks}")
        source = self.folder.write(f"kernels/{name}.cpp", candidate.source)
        self.folder.write_json(f"kernels/{name}.plan.json", plan.model_dump(mode="json"))
        last = name == self.settings.plans[-1]
        self.say(f"plan '{name}' is legal: {len(plan.phases)} phases, {plan.all_to_alls} all-to-alls; judging {source}")
        incumbents = {n: c for n, (_, c, e) in self.outcome.plans.items() if e.status is Status.PASSED} if last else {}
        # Only the last plan is paired: the others are its incumbents and need a check and stamps.
        effort = self.settings.effort if last else Effort(processes=1, pairs=3, read_pairs=self.settings.effort.read_pairs)
        limits = JudgeLimits(checks=self.settings.checks, effort=effort, rivals=self.settings.rivals if last else ())
        evaluation = self.judge.evaluate(candidate, self.problem, limits, purpose=Purpose.ADMIT if last else Purpose.SEARCH,
                                         incumbents=incumbents, checks=checks, predicted=self.predict(plan, seconds))  # fmt: skip
        self.say(f"  {name}: {evaluation.status}, {evaluation.standing}" + (f"\n{evaluation.log.strip()}" if evaluation.log else ""))
        return candidate, evaluation

    def name_the_guilty(
        self, plan: Plan, best: dict[str, Implementation], evaluation: Evaluation, checks: Sequence[Prepared]
    ) -> Evaluation:
        """Bisect a failed megakernel; guilty kinds in `best` are replaced by their oracles. Returns the record with the names."""
        self.say("  bisecting: stages are swapped back to their oracles until the guilty one is alone")
        oracles = pick(self.graph, self.implementations, "cpu", oracle=True)
        choice = pick(self.graph, self.implementations, "cpu", best=best)
        bisection = Bisection(self.judge, self.problem, plan, choice, oracles, JudgeLimits(), failing(evaluation, checks))
        culprits = bisection.find()
        for tried in bisection.evaluations:
            self.record(tried)
        names = []
        for culprit in culprits:
            names.append(f"{culprit.implementation or culprit.kind} in {', '.join(culprit.nodes) or 'every stage'}")
            if culprit.implementation:
                best[culprit.kind] = choose(self.implementations, culprit.kind, "cpu", oracle=True)
            self.say(f"  guilty: {names[-1]}")
        return evaluation.model_copy(update={"guilty": tuple(names)})

    def record(self, evaluation: Evaluation) -> Evaluation:
        kept = self.folder.record(evaluation)
        self.outcome.evaluations.append(kept)
        self.folder.event("candidate.judged", candidate=kept.candidate, name=kept.candidate_name, status=kept.status, evaluation=kept.id)
        log.debug("candidate.judged", name=kept.candidate_name, status=str(kept.status), seconds=round(kept.seconds, 2))
        return kept

    def admit(self) -> None:
        """A plan that beats the one before it by the margin becomes a trick in memory."""
        names = list(self.outcome.plans)
        for earlier, name in zip(names, names[1:], strict=False):
            plan, candidate, evaluation = self.outcome.plans[name]
            why_not = refusal(evaluation, earlier)
            self.folder.event("trick.admitted" if not why_not else "trick.refused", plan=name, incumbent=earlier, why=why_not)
            if why_not:
                self.say(f"memory: nothing admitted for '{name}' over '{earlier}': {why_not}")
                continue
            assert evaluation.times is not None
            trick = Trick(
                claim=f"plan '{name}' ({plan.all_to_alls} all-to-alls) beats '{earlier}' "
                      f"({self.outcome.plans[earlier][0].all_to_alls}) with the same stages",
                kind="plan", problem=self.problem.name, size=self.problem.size, target="cpu", environment=evaluation.environment.id,
                candidate=candidate.id, parent=self.outcome.plans[earlier][1].id, evaluations=(evaluation.id,),
                ratio=evaluation.times.vs[earlier], author="hand-written plan",
            )  # fmt: skip
            self.outcome.admitted += admit(self.memory, trick)

    # -- the end -------------------------------------------------------------------------------------------------

    def summarise(self) -> dict[str, Any]:
        """The object that --json prints as the last line."""
        names = list(self.outcome.plans)
        plan, candidate, evaluation = self.outcome.plans[names[-1]]
        yardstick = self.outcome.plans.get("unfused")
        times = evaluation.times
        vs: Mapping[str, Interval] = times.vs if times else {}

        def ratio(name: str) -> dict[str, Any] | None:
            r = vs.get(name)
            return None if r is None else {"median": r.median, "low": r.low, "high": r.high, "pairs": r.pairs}

        return {
            "status": str(evaluation.status),
            "standing": str(evaluation.standing),
            "reason": evaluation.log.strip(),
            "problem": f"{self.problem.name}/{self.problem.size}",
            "run_folder": str(self.folder.path),
            "kernel": str(self.folder.path / "kernels" / f"{names[-1]}.cpp"),
            "candidate": candidate.id,
            "evaluations": len(self.outcome.evaluations),
            "last_evaluation": self.outcome.evaluations[-1].id,
            "load_average": evaluation.load_average,
            "stages_passed": sum(e.status is Status.PASSED for _, e in self.outcome.stages),
            "stages_judged": len(self.outcome.stages),
            "dispatches_per_step": evaluation.dispatches_per_step,
            "dispatch_evidence": evaluation.dispatch_evidence,
            "all_to_alls": plan.all_to_alls,
            "unfused_all_to_alls": yardstick[0].all_to_alls if yardstick else None,
            "step_us": None if times is None else 1e6 * times.step_seconds.median,
            "speedup_vs_baseline": ratio("baseline"),
            "speedup_vs_torch_best": ratio("torch_best"),
            "speedup_vs_unfused": ratio("unfused"),
            "byte_floor_share": times.read_pass_share.median if times and times.read_pass_share else None,
            "peak_bytes": evaluation.peak_bytes,
            "memory_admitted": self.outcome.admitted,
            "walls": list(self.judge.walls.standing),
            "missing_walls": dict(self.judge.walls.missing),
            "seconds": round(time.monotonic() - self.started, 1),
        }


def describe_effort(effort: Effort) -> str:
    """One line for people: how much is measured."""
    return f"{effort.pairs} interleaved pairs in each of {effort.processes} fresh process pairs"
