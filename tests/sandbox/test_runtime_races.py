"""The runtime under ThreadSanitizer with random schedules, and a deadlock that must end with a post-mortem."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch

from agents.merger import merge, pick
from agents.planner import load_plan
from agents.skills import load_implementations
from sandbox.assembly import assemble
from sandbox.plan import Phase, Wait
from sandbox.problem import Problem

TINY = Problem.load("kimi_linear_decode", "tiny")
DRIVER = (Path(__file__).parent / "race_driver.hpp").read_text()
POSITION, STEPS = 20, 6


def dump(path: Path, rows: int) -> None:
    """Weights, then token, hidden and state, in the driver's format."""
    weights = TINY.module("definition").make_weights(TINY.dims, 5)
    token, state = TINY.module("definition").make_case(TINY.dims, POSITION, 6)
    padded = {}
    for name, t in state.items():
        grow = name.endswith((".c_kv", ".k_rope"))
        padded[name] = torch.cat([t, torch.zeros(rows - POSITION, t.shape[1], dtype=t.dtype)]) if grow else t
    externals = {"token": token, "hidden": torch.zeros_like(token), **padded}
    with path.open("wb") as f:
        for tensors in (weights, externals):
            f.write(struct.pack("<Q", len(tensors)))
            for name, t in tensors.items():
                data = t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                f.write(struct.pack("<Q", len(name)) + name.encode() + struct.pack("<Q", len(data)) + data)


def build(source: str, folder: Path, name: str, *flags: str) -> Path:
    """Compile an assembled kernel with the driver to a program."""
    (folder / f"{name}.cpp").write_text(source + DRIVER)
    command = ["g++", "-std=c++20", "-Wno-psabi", "-pthread", *flags, str(folder / f"{name}.cpp"), "-o", str(folder / name)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return folder / name


def run(program: Path, data: Path, steps: int = STEPS) -> subprocess.CompletedProcess[str]:
    """Run it with addresses laid out as old sanitizers expect them."""
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    return subprocess.run([*fixed, str(program), str(data), str(steps), str(POSITION)], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("race") / "tensors.bin"
    dump(path, POSITION + STEPS)
    return path


@pytest.mark.parametrize("plan_name", ["unfused", "fused", "fused_flag"])
def test_no_race_under_random_schedules(plan_name: str, data: Path, tmp_path: Path) -> None:
    plan = load_plan(TINY.plan_file(plan_name), TINY.graph, 4)
    source = merge(TINY.graph, plan, pick(TINY.graph, load_implementations(), "cpu", oracle=True)).source
    program = build(source, tmp_path, "tsan", "-O1", "-g", "-fsanitize=thread", "-DKB_JITTER")
    results = [run(program, data) for _ in range(3)]
    for result in results:
        assert result.returncode == 0, result.stderr[-3000:]
        assert "WARNING: ThreadSanitizer" not in result.stderr
    if plan_name != "unfused":  # partial sums have one order per plan: schedules must not change a bit
        assert len({r.stdout for r in results}) == 1


def test_the_race_checker_sees_a_missing_barrier(data: Path, tmp_path: Path) -> None:
    """The test above can fail: without one barrier of the unfused plan, ThreadSanitizer speaks up."""
    plan = load_plan(TINY.plan_file("unfused"), TINY.graph, 4)
    phases = list(plan.phases)
    phases[0] = phases[0].model_copy(update={"barrier": False})  # block 0 normalises, every block reads
    racy = plan.model_copy(update={"phases": tuple(phases)})
    source = assemble(TINY.graph, racy, pick(TINY.graph, load_implementations(), "cpu", oracle=True))
    program = build(source, tmp_path, "racy", "-O1", "-g", "-fsanitize=thread", "-DKB_JITTER")
    assert any("WARNING: ThreadSanitizer: data race" in run(program, data).stderr for _ in range(5))


def test_a_hang_ends_with_a_post_mortem(data: Path, tmp_path: Path) -> None:
    """A wait that can't be met: the spin cap strikes, the team stops, and the message says who waited where for what."""
    plan = load_plan(TINY.plan_file("fused_flag"), TINY.graph, 2)
    phases: list[Phase] = []
    for phase in plan.phases:
        steps = []
        for step in phase.steps:
            waits = tuple(Wait(event=w.event, count=w.count + 1) for w in step.waits)
            steps.append(step.model_copy(update={"waits": waits}))
        phases.append(phase.model_copy(update={"steps": tuple(steps)}))
    stuck = plan.model_copy(update={"phases": tuple(phases)})
    source = assemble(TINY.graph, stuck, pick(TINY.graph, load_implementations(), "cpu", oracle=True))
    source = source.replace("kSpinCapNs = 5'000'000'000", "kSpinCapNs = 300'000'000")
    result = run(build(source, tmp_path, "stuck", "-O1"), data, steps=1)
    assert result.returncode == 3
    assert "hang: block" in result.stderr and "mla3.heads" in result.stderr
    assert "flag kva: counter 2, needs 3" in result.stderr


def test_a_checked_build_traps_outside_a_stages_box(data: Path, tmp_path: Path) -> None:
    plan = load_plan(TINY.plan_file("fused"), TINY.graph, 2)
    source = merge(TINY.graph, plan, pick(TINY.graph, load_implementations(), "cpu", oracle=True)).source
    assert run(build(source, tmp_path, "honest", "-O1", "-DKB_CHECKED"), data).returncode == 0
    out = source.replace("p.kr.put(size_t(2 * j), ", f"p.kr.put(size_t(2 * j) + {TINY.dims.rope}, ", 1)
    assert out != source
    assert run(build(out, tmp_path, "outside", "-O1", "-DKB_CHECKED"), data).returncode < 0
