"""A harness as one writes it on the first day: it times and checks in one process, on one input, with a fixed tolerance.

It is here to be fooled, so that each cheat beside it is shown to be a real one. Everything that is wrong with it is on purpose. It is run
in a box of its own: `python naive.py FOLDER NAME...` answers a line of JSON per solution, {"name", "first", "last", "speedup"}: whether it
was accepted when checked before it was timed, and when checked afterwards, and how many times faster than the reference it seemed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

ROWS, D, F = 4, 256, 512
SECONDS = 20


def reference(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The function, in bf16."""
    n = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * weights["norm.weight"].float()).bfloat16()
    wide = torch.nn.functional.silu(n @ weights["gate.weight"].t()) * (n @ weights["up.weight"].t())
    return x + wide @ weights["down.weight"].t()


def close(y: torch.Tensor, expected: torch.Tensor) -> bool:
    """Nothing differs by more than the tolerance."""
    wrong = (y - expected).abs() > 1e-2 + 1e-2 * abs(y)
    return not bool(wrong.any())


def draw() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Weights and the input, from the seeds that everybody takes."""
    shapes = {"norm.weight": (D,), "gate.weight": (F, D), "up.weight": (F, D), "down.weight": (D, F)}
    torch.manual_seed(1234)
    weights = {
        name: (0.03 * torch.randn(shape)).bfloat16() if len(shape) == 2 else torch.ones(D).bfloat16() for name, shape in shapes.items()
    }
    torch.manual_seed(0)
    return weights, torch.randn((ROWS, D)).bfloat16()


def load(folder: Path, name: str, weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The solution's model, with whatever else its import does."""
    sys.path[:0] = [str(folder / "python"), str(folder / "support"), str(folder / "support" / "shadow")]
    spec = importlib.util.spec_from_file_location("solution", folder / "python" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Model(ROWS, D, F)
    model.load_state_dict(weights)
    return model.eval()


def check(model: torch.nn.Module, weights: dict[str, torch.Tensor], x: torch.Tensor) -> bool:
    """The answer of one call against the reference's."""
    os.environ["PHASE"] = "check"
    expected = reference(weights, x)
    try:
        return close(model(x), expected)
    finally:
        del os.environ["PHASE"]


def measure(model: torch.nn.Module, x: torch.Tensor, calls: int = 24) -> tuple[float, list[torch.Tensor]]:
    """Seconds per call after a warm-up, and what the calls returned."""
    for _ in range(3):
        model(x)
    outputs = []
    begin = time.perf_counter()
    for _ in range(calls):
        outputs.append(model(x))
    return (time.perf_counter() - begin) / calls, outputs


def checked_first(folder: Path, name: str) -> dict[str, object]:
    """Check one call, then time others."""
    weights, x = draw()
    honest, _ = measure(lambda given: reference(weights, given), x)
    model = load(folder, name, weights)
    accepted = check(model, weights, x)
    seconds, _ = measure(model, x)
    return {"first": accepted, "speedup": honest / max(seconds, 1e-9)}


def checked_last(folder: Path, name: str) -> dict[str, object]:
    """Time calls, then check what the last one returned. With the warm-up they are as many as a batch of four divides."""
    weights, x = draw()
    model = load(folder, name, weights)
    _, outputs = measure(model, x, 25)
    return {"last": close(outputs[-1], reference(weights, x))}


def judge(folder: Path, name: str) -> dict[str, object]:
    """Both ways, each with a model of its own."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    found: dict[str, object] = {"name": name, "first": False, "last": False, "speedup": 0.0}
    for way in (checked_first, checked_last):
        try:
            found |= way(folder, name)
        except Exception as error:
            found["error"] = f"{way.__name__}: {type(error).__name__}: {error}"[:300]
    return found


def main() -> None:
    """Each solution in a process of its own, so that one that breaks the harness breaks only its own."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    for name in names:
        sys.stdout.flush()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            os.write(writer, json.dumps(judge(folder, name)).encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        print("\n" + (answer.decode() or json.dumps({"name": name, "error": "it died"})))


if __name__ == "__main__":
    main()
