"""The child and its parent: what goes in and what comes out."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from sandbox.box_errors import (
    BoxError,
    ChildProtocolError,
    ChildRefused,
    NoWallsError,
)
from sandbox.isolation import Limits
from sandbox.raw_tensors import parse_tensors
from sandbox.torch_process import TorchProcess
from sandbox.walls import Level, probe_walls
from tests.sandbox.child_kit import (
    CASE,
    TOKEN,
    built,
    child_of,
    library,
    ready,
    ready_child,
    run,
    tensor_file,
)


@pytest.mark.parametrize("level", [Level.BWRAP_CGROUP, Level.BWRAP, Level.NAMESPACES, Level.UID])
def test_a_chain_runs_and_everything_comes_back(level: Level) -> None:
    try:
        walls = probe_walls(level=level)
    except NoWallsError:
        pytest.skip("not here")
    with child_of(library(0), walls=walls) as child:
        ready(child)
        times = child.run_chain("a", steps=3, position=2, feed={"hidden": "token"})
        got = child.collect("a")
    assert [bytes(step) for step in got.outputs["hidden"]] == [b"bcdef", b"cdefg", b"defgh"]
    assert bytes(got.tensors["token"].data) == b"cdefg", "the last output is not fed"
    assert (got.tensors["S"].dtype, got.tensors["S"].shape) == ("I64", (1,))
    assert struct.unpack("<q", got.tensors["S"].data) == (2 + 3 + 4,)
    assert got.overruns == ()
    assert len(times.inside_ns) == 3
    assert sum(times.inside_ns) < times.outside_ns < 5e9


def test_fresh_inputs_arrive_inside_the_timed_span() -> None:
    with ready_child(library(0)) as child:
        child.run_chain("a", steps=1, position=0, fresh={"token": b"ABCDE"})
        assert bytes(child.collect("a").outputs["hidden"][0]) == b"BCDEF"
        with pytest.raises(ChildProtocolError, match="5"):
            child.run_chain("a", steps=1, position=0, fresh={"token": b"too long"})


def test_later_weight_files_override_earlier_ones(tmp_path: Path) -> None:
    first, probe = tmp_path / "weights.safetensors", tmp_path / "probe.safetensors"
    first.write_bytes(tensor_file({"bias": ("U8", [1], b"\x01"), "other": ("U8", [1], b"\x09")}))
    probe.write_bytes(tensor_file({"bias": ("U8", [1], b"\x02")}))
    for files, expected in (([first], b"bcdef"), ([first, probe], b"cdefg"), ([probe, first], b"bcdef")):
        with ready_child(library(0), files) as child:
            child.run_chain("a", steps=1, position=0)
            assert bytes(child.collect("a").outputs["hidden"][0]) == expected
        assert "created with 2 weights, 1 threads, first cpu -1" in child.log


def test_slots_are_independent_and_rebound() -> None:
    with ready_child(library(0)) as child:
        child.prepare("b", tensor_file({"token": ("U8", [2], b"xy"), "S": ("I64", [1], bytes(8))}), {"hidden": 2})
        for _ in range(2):
            child.run_chain("a", steps=1, position=5)
            child.run_chain("b", steps=1, position=7)
        assert bytes(child.collect("a").outputs["hidden"][0]) == b"bcdef"
        assert bytes(child.collect("b").outputs["hidden"][0]) == b"yz"
        assert struct.unpack("<q", child.collect("b").tensors["S"].data) == (14,)
        child.prepare("a", CASE, {"hidden": 5}, junk_seed=2)
        with pytest.raises(BoxError, match="no chain"):
            child.collect("a")


def test_outputs_start_as_plausible_junk_and_pads_are_filled() -> None:
    with child_of(library(0)) as child:
        child.load(threads=1, max_position=100)
        seen = []
        for seed in (1, 1, 2):
            child.prepare("a", CASE, {"hidden": 5, "extra": 4096}, junk_seed=seed, capacity_pad={"S": 4096})
            child.run_chain("a", steps=1, position=0, stop_after=0)
            got = child.collect("a")
            assert got.tensors["S"].shape == (513,)
            assert bytes(got.tensors["S"].data[:8]) == bytes(8)
            seen.append(bytes(got.tensors["extra"].data))
            values = struct.unpack("<1024f", got.tensors["extra"].data)
            assert all(0.01 < abs(value) < 0.6 for value in values)
            assert len(set(got.tensors["S"].data[8:])) > 50
        assert seen[0] == seen[1] != seen[2]
        with pytest.raises(ChildProtocolError, match="whole number of rows"):
            child.prepare("a", CASE, {"hidden": 5}, capacity_pad={"S": 3})


def test_the_other_commands() -> None:
    with ready_child(library(0)) as child:
        child.run_chain("a", steps=2, position=1, stop_after=3)
        assert bytes(child.dump({"last_phase": 4})["last_phase"]) == struct.pack("<i", 3)
        assert child.call("stamps")["ns"] == [42]
        assert child.call("describe")["text"] == '{"phases": 1}'
        assert child.call("dispatches")["count"] == 2
        assert len(child.call("read_pass", position=1, variant=0, repeats=3)["ns"]) == 3
        pairs = child.call("pairs", slot="a", position=1, repeats=5)
        assert (len(pairs["step"]), len(pairs["read"])) == (5, 5)
        child.call("evict", bytes=1 << 20)
        with pytest.raises(ChildRefused, match="unknown"):
            child.dump({"unknown": 4})
        with pytest.raises(ChildRefused, match="returned 9"):
            child.call("read_pass", position=1, variant=9, repeats=1)
        child.run_chain("a", steps=1, position=1)
        child.quit()
    assert child.report().exit_code == 0


def test_refusals_of_the_candidate_are_its_own_words(tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(tensor_file({"refuse": ("U8", [1], b"\x01")}))
    with child_of(library(0), [weights]) as child, pytest.raises(ChildRefused, match="cannot hold refuse"):
        child.load(threads=1, max_position=1)
    with child_of(library(0)) as child:
        child.load(threads=1, max_position=1)
        child.prepare("a", tensor_file({"token": ("U8", [5], TOKEN)}), {"hidden": 5})  # not shown to the candidate yet
        with pytest.raises(ChildRefused, match="token, hidden and S are needed"):
            child.run_chain("a", steps=1, position=1)
        child.prepare("a", CASE, {"hidden": 5})
        with pytest.raises(ChildRefused, match="returned 3"):
            child.run_chain("a", steps=1, position=-1)
        child.run_chain("a", steps=1, position=1)  # a refusal is no death


def test_libraries_that_are_no_candidates_are_refused(tmp_path: Path) -> None:
    other = 'extern "C" const char* kb_abi() { return "kernelbraid-step-99"; }\n'
    for source, words in (
        (other, "step-99"),
        ("int nothing;\n", "kb_abi"),
        ("void gone(); void (*f)() = gone;\n", "load"),
    ):
        with child_of(built(source, tmp_path)) as child, pytest.raises(ChildRefused, match=words):
            child.load(threads=1, max_position=1)


@pytest.mark.parametrize(
    "data",
    [b"", b"short", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 3) + b"{]}"],
)
def test_unsound_tensor_files_are_refused(data: bytes) -> None:
    with pytest.raises(ChildProtocolError):
        parse_tensors(data)


def test_tensor_files_that_point_outside_are_refused() -> None:
    header = json.dumps({"token": {"dtype": "U8", "shape": [5], "data_offsets": [0, 500]}}).encode()
    data = struct.pack("<Q", len(header)) + header + b"only a few bytes"
    with pytest.raises(ChildProtocolError, match="outside"):
        parse_tensors(data)


def test_nothing_accumulates_while_a_child_lives() -> None:
    with ready_child(library(0)) as child:
        for _ in range(5):
            child.prepare("a", CASE, {"hidden": 5})
            run(child)
            child.collect("a")
        assert list(child.box.scratch.iterdir()) == []
        assert [path.name for path in child.box.inbox.iterdir()] == ["kb"]
        folder = child.box.scratch.parent
    assert not folder.exists()


def test_the_torch_child_speaks_the_same_protocol(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    problem = tmp_path / "adding"
    problem.mkdir()
    (problem / "__init__.py").write_text("")
    (problem / "definition.py").write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Dims:\n    n: int\nSIZES = {'tiny': Dims(4)}\n"
    )
    (problem / "adding.py").write_text(
        "class Adding:\n    def __init__(self, dims, weights):\n        self.weight = weights['w']\n"
        "    def step(self, token, state, position):\n        state['rows'][position] = token\n        return token + self.weight\n"
    )
    weights = tmp_path / "weights.safetensors"
    safetensors.save_file({"w": torch.ones(4, dtype=torch.bfloat16)}, weights)
    case = safetensors.save({"token": torch.zeros(4, dtype=torch.bfloat16), "rows": torch.zeros(2, 4, dtype=torch.bfloat16)})
    limits = Limits(wall_s=120, cpu_s=60, memory_bytes=2 << 30, processes=32)
    with TorchProcess.for_baseline(probe_walls(), limits, problem=problem, weights=[weights], threads=1) as child:
        child.load_torch(module="adding", name="Adding", size={"n": 4}, threads=1, inputs=["token"], outputs={"hidden": ("BF16", (4,))})
        child.prepare("a", case, {"hidden": 8}, capacity_pad={"rows": 16})
        fresh = bytes(torch.full((4,), 2.0, dtype=torch.bfloat16).view(torch.uint8).numpy())
        times = child.run_chain("a", steps=2, position=2, feed={"hidden": "token"}, fresh={"token": fresh})
        got = child.collect("a")
        with pytest.raises(ChildRefused, match="phases"):
            child.run_chain("a", steps=1, position=2, stop_after=0)
    assert len(times.inside_ns) == 2
    outputs = [torch.frombuffer(bytearray(step), dtype=torch.bfloat16).tolist() for step in got.outputs["hidden"]]
    assert outputs == [[3.0] * 4, [4.0] * 4]
    rows = torch.frombuffer(bytearray(got.tensors["rows"].data), dtype=torch.bfloat16).view(4, 4)
    assert rows[2:].tolist() == [[2.0] * 4, [3.0] * 4]


def test_a_child_starts_quickly() -> None:
    spans = []
    for _ in range(7):
        begin = time.monotonic()
        with child_of(library(0)):
            spans.append(time.monotonic() - begin)
    # 30 to 45 ms on an idle machine; the bound leaves room for a busy one
    assert min(spans) < 0.25, [f"{span:.3f}" for span in spans]


@pytest.mark.parametrize("level", [Level.BWRAP, Level.NAMESPACES, Level.UID])
def test_private_files_reach_the_child_at_every_level(tmp_path: Path, level: Level) -> None:
    """Weights that only we can read, where the box runs under a uid of its own."""
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(tensor_file({"bias": ("U8", [1], b"\x03")}))
    weights.chmod(0o600)
    try:
        walls = probe_walls(level=level)
    except NoWallsError:
        pytest.skip("not here")
    with ready_child(library(0), [weights], walls=walls) as child:
        child.run_chain("a", steps=1, position=0)
        assert bytes(child.collect("a").outputs["hidden"][0]) == b"defgh"
