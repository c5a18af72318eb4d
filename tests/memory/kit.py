"""Evaluations and tricks as a run makes them, for the tests of the memory."""

from __future__ import annotations

from typing import Any

from memory.change import Change, Choice, Rewrite
from memory.trick import Failure, Hardware, Trick
from sandbox.evaluation import CaseResult, Environment, Evaluation, Interval, Purpose, Standing, Status, TensorError, Times

HERE = Environment(cpu="c", cores=2, arch="x", kernel="k", compiler="g++ 13")
SHAPE: dict[str, int | str] = {"hidden": 1024, "layers": 4}


def evaluation(**changes: Any) -> Evaluation:
    """A confirmed pass that is 1.1 times as fast as `unfused`; `ratio` changes single fields of that interval."""
    ratio = Interval(**({"median": 1.1, "low": 1.05, "high": 1.2, "pairs": 30, "processes": 5} | changes.pop("ratio", {})))
    error = TensorError(rel_rms=0.1, allowed_rel_rms=0.2, max_element=0.1, allowed_max_element=0.2, ok=True)
    fields: dict[str, Any] = {
        "problem": "p", "size": "s", "candidate": "c", "role": "solution", "purpose": Purpose.ADMIT, "status": Status.PASSED,
        "environment": HERE, "standing": Standing.CONFIRMED,
        "cases": (CaseResult(probe="o", seed=1, position=1, steps=1, tensors={"hidden": error}),),
        "times": Times(step_seconds=Interval(median=1, low=1, high=1, pairs=30, processes=5), vs={"unfused": ratio}),
    }  # fmt: skip
    return Evaluation.model_validate(fields | changes)


def recorded(**changes: Any) -> Evaluation:
    """The same with its own hash, as the chain of a run folder has it."""
    return evaluation(**changes).chained("")


def trick(proof: Evaluation, **changes: Any) -> Trick:
    """A trick that claims what an evaluation proves."""
    fields: dict[str, Any] = {
        "claim": "one phase less", "kind": "plan", "problem": proof.problem, "size": proof.size, "shape": SHAPE, "target": "cpu",
        "environment": proof.environment.id, "candidate": proof.candidate, "parent": "b", "evaluations": (proof.id,),
        "ratio": Interval(median=1.1, low=1.05, high=1.2, pairs=30, processes=5),
        "change": Change(rewrites=(Rewrite(kind="join", section="kda", subject="norm"),)),
    }  # fmt: skip
    return Trick.model_validate(fields | changes)


def proven(number: int, **changes: Any) -> tuple[Trick, Evaluation]:
    """The `number`-th of many tricks, with its proof."""
    proof = recorded(candidate=f"c{number}")
    return trick(proof, **{"claim": f"claim number {number}", **changes}), proof


def failure(number: int = 0, **changes: Any) -> Failure:
    """A choice that was wrong here."""
    fields: dict[str, Any] = {
        "change": Change(choices={"up": Choice(implementation="moe-experts/up-digits", knobs={"LEVELS": number}, id=f"i{number}")}),
        "kind": "implementation", "slot": "up", "problem": "p", "size": "s", "shape": SHAPE, "hardware": Hardware.of(HERE),
        "toolchain": "g++ 13", "status": "wrong", "reason": "tensor hidden: 3 times the allowed error\nmore", "evaluations": (f"e{number}",),
    }  # fmt: skip
    return Failure.model_validate(fields | changes)


# What a search is tried on: sentences as specialists write them.
CLAIMS = (
    "joining the norm phase with the projection saves one barrier in every layer",
    "replicating the router on all blocks removes an all-to-all",
    "int8 dot products with two levels are faster than widening nibbles to fp32",
    "one pass over the recurrent state halves the memory traffic",
    "interleaving pairs of cached rows lets bf16 dot products sum two rows at once",
    "a flag instead of a barrier hands over the latent vector",
    "three columns side by side share the broadcast of activations",
    "splitting o_proj by rows balances the deal over blocks",
)
