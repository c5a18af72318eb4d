"""Builds the folder that a campaign leaves: real records through RunFolder, failures with hostile text, a resume, a lost worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memory.change import Change, Choice, Rewrite
from memory.trick import Trick
from orchestrator.run_folder import RunFolder
from sandbox.evaluation import CaseResult, Environment, Evaluation, Interval, PhaseTime, Purpose, Standing, Status, TensorError, Times
from sandbox.plan import Phase, Plan, Step

HOSTILE = {
    "wrong": "hidden: rel_rms 0.31, allowed 0.016 <script>window.hacked = 1</script><img src=x onerror='window.hacked=2'>\n{{ 7 * 7 }} second line",
    "compile_error": "candidate.cpp:7:3: error: '</pre></details><script>window.hacked=3</script>' was not declared\u2028torn\u2029lines",
    "hang": "block 1 waited in phase kda0.heads on barrier: have 1, want 2\x00\x1b[31mred\u202egnirts " + "A" * 5000,
    "crash": "signal 11 {{ 7 * 7 }} {% raw %} ${alert(1)} --> ]]> </script>",
}
ENVIRONMENT = Environment(
    cpu="Example CPU 9000 <b>", cores=2, arch="x86_64", kernel="6.1.0", compiler="g++ 12.2.0 on 5db08c19a337", torch="2.13.0+cpu",
    walls=("bwrap", "namespaces", "seccomp", "rlimits"), missing_walls=("cgroup-memory: no writable memory group",),
)  # fmt: skip
SPECIALISTS = {"linear": "qkvg", "experts": "up", "attention": "attend", "plans": ""}
SECTIONS = ("kda0", "moe0", "kda1", "moe1", "mla2", "moe2")
UNFUSED = [f"{s}.{p}" for s in SECTIONS for p in ("norm", "projections", "state", "o_proj")] + ["emit"]
FUSED = [f"{s}.{'experts' if s.startswith('moe') else 'heads'}" for s in SECTIONS] + ["emit"]
STEP = 1.4e-3  # seconds per step of the start


def plan(name: str, phases: list[str]) -> Plan:
    """A plan with the given phases; only its barriers matter here."""
    step = Step(node="n", sharding="whole", owner=(0,))
    made = tuple(Phase(name=p, steps=(step,), barrier=p != phases[-1]) for p in phases)
    return Plan(name=name, graph="g", target="cpu", blocks=2, phases=made, buffers={}, edges=())


def interval(median: float, spread: float = 0.02, processes: int = 5, of: str = "") -> Interval:
    """An interval around a median, 6 pairs a process pair."""
    return Interval(median=median, low=median * (1 - spread), high=median * (1 + spread), pairs=6 * processes, processes=processes, of=of)


def case(ok: bool = True) -> CaseResult:
    """One checked case."""
    error = TensorError(rel_rms=0.002 if ok else 0.31, allowed_rel_rms=0.016, max_element=0.01, allowed_max_element=0.2, ok=ok)
    return CaseResult(probe="ordinary", seed=1, position=1024, steps=1, tensors={"hidden": error})


def solution(name: str, candidate: str, speedup: float, vs: dict[str, float], phases: list[str], **changes: Any) -> Evaluation:
    """A timed, confirmed whole step that is `speedup` times as fast as the start."""
    seconds = STEP / speedup
    stamps = tuple(
        PhaseTime(name=p, predicted_us=0.9e6 * seconds / len(phases), stamped_us=1e6 * seconds / len(phases),
                  bytes=0 if p == "emit" else int(36e6 / (len(phases) - 1)))
        for p in phases
    )  # fmt: skip
    fields: dict[str, Any] = {
        "problem": "kimi_linear_decode", "size": "small", "candidate": candidate, "candidate_name": name, "role": "solution",
        "environment": ENVIRONMENT, "purpose": Purpose.ADMIT, "status": Status.PASSED, "standing": Standing.CONFIRMED, "cases": (case(),),
        "times": Times(step_seconds=interval(seconds, of="seconds per step"), phases=stamps, read_pass_share=interval(0.42 * speedup, 0.01),
                       vs={n: interval(r, of=f"speedup vs {n}") for n, r in vs.items()}),
        "dispatches_per_step": 1.0, "dispatch_evidence": "runtime", "dispatch_policy": 1, "compile_seconds": 2.1, "seconds": 41.5,
        "load_average": 1.9, "peak_bytes": 500 << 20,
    }  # fmt: skip
    return Evaluation.model_validate(fields | changes)


def stage(node: str, candidate: str, status: Status, seconds: float = 1e-4) -> Evaluation:
    """A stage alone: timed if it passed, else with a hostile log."""
    passed = status is Status.PASSED
    times = Times(step_seconds=interval(seconds, 0.05, 1), clock="child, estimate") if passed else None
    cases = (case(),) if passed else (case(ok=False),) if status is Status.WRONG else ()
    return Evaluation(
        problem="kimi_linear_decode", size="small", candidate=candidate, candidate_name=f"variant@{node}", role="stage", node=node,
        environment=ENVIRONMENT, purpose=Purpose.SEARCH, status=status, cases=cases, times=times, log=HOSTILE.get(str(status), ""),
        seconds=2.0,
    )  # fmt: skip


def recalled(claim: str) -> Trick:
    """A trick that an earlier campaign proved."""
    return Trick(claim=claim, kind="implementation", problem="kimi_linear_decode", size="tiny", target="cpu", environment=ENVIRONMENT.id,
                 candidate=claim, parent="b" * 64, evaluations=("9" * 64,), ratio=interval(1.31))  # fmt: skip


class Builder:
    """Writes a campaign event by event; `steps` yields between events, so that a view can be watched while it grows."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.seconds = 0.0
        self.number = 0
        self.speedup = 1.0
        self.best = ("start", "0" * 64)
        self.events: list[dict[str, Any]] = []

    def event(self, event: str, after: float = 1.0, **fields: Any) -> dict[str, Any]:
        self.seconds += after
        self.folder.event(event, elapsed=round(self.seconds, 3), **fields)
        self.events.append({"event": event, "elapsed": self.seconds, **fields})
        return self.events[-1]

    def judged(self, evaluation: Evaluation, specialist: str = "", proposal: int | None = None) -> Evaluation:
        kept = self.folder.record(evaluation)
        common = {"key": kept.key, "candidate": kept.candidate, "name": kept.candidate_name, "purpose": kept.purpose, "attempt": 1}
        self.event("evaluation.started", **common)
        self.event("evaluation.completed", kept.seconds, **common, evaluation=kept.id, status=kept.status, standing=kept.standing,
                   proposal=proposal, specialist=specialist, seconds=kept.seconds)  # fmt: skip
        return kept

    def propose(
        self, specialist: str, candidate: str, *, shown: tuple[str, ...] = (), skipped: str = "", change: Change | None = None
    ) -> dict[str, Any]:
        self.number += 1
        slot = "" if change else SPECIALISTS[specialist]
        if change is None and slot:
            change = Change(
                choices={slot: Choice(implementation=f"w4a16-gemv/digits-{self.number}", knobs={"LEVELS": 2}, id=f"{self.number:064x}")}
            )
        change = change or Change(rewrites=(Rewrite(kind="join", section="kda", subject="norm"),))
        proposal = {"number": self.number, "specialist": specialist, "proposer": "tuner", "slot": slot, "shown": list(shown),
                    "change": change.model_dump(mode="json"), "why": "fewer <bytes> per weight", "used": list(shown)}  # fmt: skip
        if skipped:
            self.event("proposal.skipped", 0.1, proposal=proposal, why=skipped)
        else:
            self.event("proposal.made", 0.2, proposal=proposal, candidate=candidate, text=HOSTILE["crash"])
        return proposal

    def win(self, specialist: str, ratio: float, phases: list[str], shown: tuple[str, ...] = ()) -> None:
        """A stage that is better alone, then the megakernel with it (or a plan at once), proven and taken."""
        parent, change = f"{self.number:02x}" * 32, None
        slot = SPECIALISTS[specialist]
        if slot:
            alone = f"5{self.number:063x}"
            screened = self.propose(specialist, alone, shown=shown)
            self.judged(stage(f"L2.{slot}", alone, Status.PASSED), specialist, screened["number"])
            self.event("stage.judged", 0.0, slot=slot, choice="x", status="passed", ratio=1.3, proposal=screened["number"])
            change = Change.model_validate(screened["change"])
        candidate, name = f"{self.number + 1:02x}" * 32, f"best-{self.number + 1}"
        proposal = self.propose(specialist, candidate, shown=shown, change=change)
        number = proposal["number"]
        e = self.judged(solution(name, candidate, self.speedup * ratio, {"incumbent": ratio}, phases), specialist, number)
        self.speedup *= ratio
        self.best = (name, candidate)
        self.kernel(name, phases)
        r = interval(ratio, of="speedup vs incumbent")
        trick = Trick(
            claim=f"slot '{slot or 'plan'}' is <faster> with what proposal {number} says", kind="implementation",
            problem=e.problem, size=e.size, target="cpu", environment=ENVIRONMENT.id, candidate=candidate, parent=parent,
            evaluations=(e.id,), ratio=r,
        )  # fmt: skip
        self.event("trick.admitted", trick=trick.model_dump(mode="json") | {"id": trick.id}, specialist=specialist, proposal=number)
        self.event("incumbent.changed", megakernel=name, candidate=candidate, evaluation=e.id, specialist=specialist, proposal=number,
                   change=proposal["change"], ratio={"median": r.median, "low": r.low, "high": r.high}, speedup=self.speedup)  # fmt: skip

    def kernel(self, name: str, phases: list[str]) -> None:
        source = ("// Megakernel\n// Build: g++ -std=c++20 -O3 this.cpp -o kernel.so\n"
                  "// </pre></details><script>window.hacked=4</script>\nint main() { return 1 < 2 && 3 > 2; }\n")  # fmt: skip
        self.folder.write(f"kernels/{name}.cpp", source + "// \u2028 padding\n" * 40)
        self.folder.write_json(f"kernels/{name}.plan.json", plan(name, phases).model_dump(mode="json"))

    def steps(self, finished: bool = True) -> Iterator[None]:
        self.folder.write_json("environment.json", ENVIRONMENT.model_dump(mode="json"))
        self.folder.write_json("settings.json", {
            "problem": "kimi_linear_decode", "size": "small", "threads": 2, "engine": "local", "seed": 7, "opponents": ["fused"],
            "rivals": ["baseline", "torch_best"],
            "command": ["kernelbraid", "run", "--size", "small", "--note", "it's <b>"], "commit": "0123abcd",
        })  # fmt: skip
        known, unused = recalled("two levels of digits are enough <i>"), recalled("never shown")
        self.event("campaign.started", 0.0)
        self.event("memory.recalled", tricks=[t.model_dump(mode="json") for t in (known, unused)], failures=3)
        self.event("phase.entered", phase="start", round=0)
        self.kernel("start", UNFUSED)
        self.judged(solution("start", "0" * 64, 1.0, {}, UNFUSED, purpose=Purpose.SEARCH, standing=Standing.PROVISIONAL))
        yield
        for round_, (status, who) in enumerate([("compile_error", "linear"), ("wrong", "experts"), ("hang", "attention")], 1):
            self.event("phase.entered", phase="screen", round=round_, specialist=who)
            number = self.propose(who, f"f{round_}" * 32, shown=(known.id,))["number"]
            self.judged(stage(f"L2.{SPECIALISTS[who]}", f"f{round_}" * 32, Status(status)), who, number)
            yield
        self.win("linear", 1.18, UNFUSED, shown=(known.id,))
        self.event("stage.best", slot="qkvg", choice={"implementation": "x", "knobs": {}, "id": "i"}, ratio=1.4)
        yield
        self.event("evaluation.started", key="k" * 64, candidate="c" * 64, name="lost one", purpose="search", attempt=1)
        self.event("worker.lost", worker="judge-1", error="killed by signal 9 <script>window.hacked=5</script>")
        self.event("worker.replaced", worker="judge-1")
        yield
        self.event("campaign.interrupted", 20)
        self.event("campaign.resumed", 1)
        self.event("evaluation.abandoned", key="k" * 64)
        self.propose("linear", "d" * 64, skipped="failed before here: wrong")
        yield
        self.event("plan.priced", 5, considered=812, legal=301, best_us=960.0, incumbent_us=1180.0)
        self.win("plans", 1.12, FUSED)
        yield
        number = self.propose("experts", "e" * 64)["number"]
        self.judged(solution("slow", "e" * 64, self.speedup * 0.99, {"incumbent": 0.99}, FUSED), "experts", number)
        why = "the interval of the ratio starts at 0.970, the margin is 1.02"
        self.event("trick.refused", specialist="experts", proposal=number, why=why)
        yield
        self.win("experts", 1.09, FUSED)
        yield
        if not finished:
            return
        self.event("phase.entered", phase="final", round=9)
        vs = {"start": self.speedup * 0.985, "fused": 1.03, "baseline": 61.0}
        name, candidate = self.best
        last = self.judged(solution(name, candidate, self.speedup * 0.985, vs, FUSED, purpose=Purpose.REGRADE))
        self.event("campaign.finished", status="passed", why="the budget is spent")
        count = len((self.folder.path / "evaluations.jsonl").read_bytes().split(b"\n")) - 1
        self.folder.write_json("summary.json", {
            "status": "passed", "standing": "confirmed", "candidate": last.candidate, "evaluations": count, "last_evaluation": last.id,
            "seconds": self.seconds,
        })  # fmt: skip
        yield


def build(path: Path, finished: bool = True) -> Path:
    """The whole folder at once."""
    builder = Builder(path)
    for _ in builder.steps(finished):
        pass
    builder.folder.close()
    return builder.folder.path
