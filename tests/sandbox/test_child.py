"""The child and its parent: what goes in, what comes out, and the name of every way to fail."""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.box_errors import (
    BoxError,
    ChildCrashed,
    ChildError,
    ChildHung,
    ChildLimit,
    ChildProtocolError,
    ChildRefused,
)
from sandbox.child_process import ChildProcess
from sandbox.compiler import compile_cpu, host_flags
from sandbox.isolation import Limits
from sandbox.raw_tensors import parse_tensors
from sandbox.walls import Level, Walls, probe_walls

LIMITS = Limits(
    wall_s=30, cpu_s=20, memory_bytes=256 << 20, processes=16, file_bytes=32 << 20, output_bytes=64 << 10
)
SOURCE = (Path(__file__).parent / "tiny_candidate.cpp").read_text()
TOKEN = b"abcde"
Build = Callable[[int], Path]


def tensor_file(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


CASE = tensor_file({"token": ("U8", [5], TOKEN), "S": ("I64", [1], bytes(8))})


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The tiny candidate with one of its mischiefs."""
    cache = tmp_path_factory.mktemp("libraries")

    def made(mischief: int) -> Path:
        flags = (*host_flags(), "-O1", f"-DMISCHIEF={mischief}")
        return compile_cpu(SOURCE, flags=flags, cache_dir=cache, walls=probe_walls()).path

    return made


def child_of(
    library: Path, weights: list[Path] | None = None, walls: Walls | None = None, **limits: object
) -> ChildProcess:
    """A child for the library; limits replace fields of LIMITS."""
    settled = Limits(**{**LIMITS.__dict__, **limits})
    return ChildProcess.for_library(walls or probe_walls(), settled, library=library, weights=weights or [])


def ready(child: ChildProcess) -> ChildProcess:
    """Loaded, with slot a prepared."""
    child.load(threads=1, max_position=100)
    child.prepare("a", CASE, {"hidden": 5}, junk_seed=1)
    return child


@contextmanager
def ready_child(library: Path, weights: list[Path] | None = None, **limits: object) -> Iterator[ChildProcess]:
    """A running child, ready to run chains."""
    with child_of(library, weights, **limits) as child:
        yield ready(child)


def run(child: ChildProcess, timeout: float = 5.0) -> None:
    child.run_chain("a", steps=1, position=1, timeout=timeout)


@pytest.mark.parametrize("level", [Level.BWRAP_CGROUP, Level.BWRAP, Level.NAMESPACES, Level.UID])
def test_a_chain_runs_and_everything_comes_back(build: Build, level: Level) -> None:
    try:
        walls = probe_walls(level=level)
    except ChildError:
        pytest.skip("not here")
    with child_of(build(0), walls=walls) as child:
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


def test_fresh_inputs_arrive_inside_the_timed_span(build: Build) -> None:
    with ready_child(build(0)) as child:
        child.run_chain("a", steps=1, position=0, fresh={"token": b"ABCDE"})
        assert bytes(child.collect("a").outputs["hidden"][0]) == b"BCDEF"
        with pytest.raises(ChildProtocolError, match="5"):
            child.run_chain("a", steps=1, position=0, fresh={"token": b"too long"})


def test_later_weight_files_override_earlier_ones(build: Build, tmp_path: Path) -> None:
    first, probe = tmp_path / "weights.safetensors", tmp_path / "probe.safetensors"
    first.write_bytes(tensor_file({"bias": ("U8", [1], b"\x01"), "other": ("U8", [1], b"\x09")}))
    probe.write_bytes(tensor_file({"bias": ("U8", [1], b"\x02")}))
    for files, expected in (([first], b"bcdef"), ([first, probe], b"cdefg"), ([probe, first], b"bcdef")):
        with ready_child(build(0), files) as child:
            child.run_chain("a", steps=1, position=0)
            assert bytes(child.collect("a").outputs["hidden"][0]) == expected
        assert "created with 2 weights, 1 threads, first cpu -1" in child.log


def test_slots_are_independent_and_rebound(build: Build) -> None:
    with ready_child(build(0)) as child:
        child.prepare(
            "b", tensor_file({"token": ("U8", [2], b"xy"), "S": ("I64", [1], bytes(8))}), {"hidden": 2}
        )
        for _ in range(2):
            child.run_chain("a", steps=1, position=5)
            child.run_chain("b", steps=1, position=7)
        assert bytes(child.collect("a").outputs["hidden"][0]) == b"bcdef"
        assert bytes(child.collect("b").outputs["hidden"][0]) == b"yz"
        assert struct.unpack("<q", child.collect("b").tensors["S"].data) == (14,)
        child.prepare("a", CASE, {"hidden": 5}, junk_seed=2)
        with pytest.raises(BoxError, match="no chain"):
            child.collect("a")


def test_outputs_start_as_plausible_junk_and_pads_are_filled(build: Build) -> None:
    with child_of(build(0)) as child:
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


def test_the_other_commands(build: Build) -> None:
    with ready_child(build(0)) as child:
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


def test_refusals_of_the_candidate_are_its_own_words(build: Build, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(tensor_file({"refuse": ("U8", [1], b"\x01")}))
    with child_of(build(0), [weights]) as child, pytest.raises(ChildRefused, match="cannot hold refuse"):
        child.load(threads=1, max_position=1)
    with child_of(build(0)) as child:
        child.load(threads=1, max_position=1)
        with pytest.raises(ChildRefused, match="token, hidden and S are needed"):
            child.prepare("a", tensor_file({"token": ("U8", [5], TOKEN)}), {"hidden": 5})
        child.prepare("a", CASE, {"hidden": 5})
        with pytest.raises(ChildRefused, match="returned 3"):
            child.run_chain("a", steps=1, position=-1)
        child.run_chain("a", steps=1, position=1)  # a refusal is no death


def test_libraries_that_are_no_candidates_are_refused(tmp_path: Path) -> None:
    def library(source: str) -> Path:
        return compile_cpu(source, flags=host_flags(), cache_dir=tmp_path, walls=probe_walls()).path

    other = 'extern "C" const char* kb_abi() { return "kernelbraid-step-99"; }\n'
    for source, words in (
        (other, "step-99"),
        ("int nothing;\n", "kb_abi"),
        ("void gone(); void (*f)() = gone;\n", "load"),
    ):
        with child_of(library(source)) as child, pytest.raises(ChildRefused, match=words):
            child.load(threads=1, max_position=1)


@pytest.mark.parametrize(
    ("mischief", "name"), [(1, "SIGSEGV"), (8, "SIGSEGV"), (9, "SIGSEGV"), (4, "SIGABRT")]
)
def test_a_crash_names_its_signal(build: Build, mischief: int, name: str) -> None:
    with ready_child(build(mischief)) as child, pytest.raises(ChildCrashed) as caught:
        run(child)
    assert caught.value.signal == name
    assert "created with" in caught.value.log
    if mischief == 4:
        assert "bad_alloc" in caught.value.log


def test_a_quiet_exit_is_a_crash_too(build: Build) -> None:
    with ready_child(build(12)) as child, pytest.raises(ChildCrashed) as caught:
        run(child)
    assert (caught.value.signal, caught.value.exit_code) == (None, 0)


def test_an_endless_loop_is_a_hang_within_its_limit(build: Build) -> None:
    begin = time.monotonic()
    with ready_child(build(2)) as child, pytest.raises(ChildHung) as caught:
        run(child, timeout=0.5)
    assert caught.value.command == "run"
    assert time.monotonic() - begin < 8


def test_the_wall_limit_of_the_box_holds_without_a_timeout(build: Build) -> None:
    with ready_child(build(2), wall_s=3.0) as child, pytest.raises(ChildHung):
        child.run_chain("a", steps=1, position=1)


@pytest.mark.parametrize(
    ("mischief", "which"), [(3, "memory"), (5, "output"), (14, "processes"), (15, "file")]
)
def test_limits_are_named(build: Build, mischief: int, which: str) -> None:
    if probe_walls().level is not Level.BWRAP_CGROUP:
        pytest.skip("memory and processes are not held by groups here")
    with ready_child(build(mischief)) as child, pytest.raises(ChildLimit) as caught:
        run(child, timeout=20)
    assert caught.value.which == which
    assert len(caught.value.log) < 2 * LIMITS.output_bytes


def test_a_spin_ends_at_the_cpu_limit(build: Build) -> None:
    with ready_child(build(2), cpu_s=1) as child, pytest.raises(ChildLimit) as caught:
        run(child, timeout=25)
    assert caught.value.which == "cpu"


def test_writing_past_the_end_within_the_page_is_reported(build: Build) -> None:
    with ready_child(build(7)) as child:
        run(child)
        assert child.collect("a").overruns == ("hidden",)


def test_prints_do_not_reach_the_protocol(build: Build) -> None:
    with ready_child(build(10)) as child:
        run(child)
        child.collect("a")
        child.quit()
    assert "forged" in child.log


def test_answers_forged_on_every_descriptor_are_noticed(build: Build) -> None:
    with ready_child(build(11)) as child, pytest.raises(ChildProtocolError, match="id"):
        run(child)


@pytest.mark.parametrize("mischief", [6, 13])
def test_forks_of_a_candidate_are_bounded_and_gone(build: Build, mischief: int) -> None:
    with ready_child(build(mischief)) as child:
        try:
            run(child, timeout=3)
        except ChildError as error:
            assert mischief == 6, error
        folders = child.box._cgroup.folders if child.box._cgroup else []
        assert all(len((f / "cgroup.procs").read_text().split()) <= LIMITS.processes + 2 for f in folders)
    report = child.report()
    assert (report.fork_refusals > 0) == (mischief == 6) or not folders
    assert not any(folder.exists() for folder in folders)


SNEAKY = """
#include <sys/stat.h>
#include <unistd.h>
struct Plant {{ Plant() {{ {body} }} }} plant;
"""


def test_a_link_planted_where_the_answer_goes_is_not_followed(tmp_path: Path) -> None:
    """The child (which runs as the candidate) would write through it, the parent must not read through it."""
    body = 'for (int n = 0; n < 9; ++n) { char p[64]; snprintf(p, 64, "/box/collect-%d.safetensors", n); symlink("/tmp/x", p); }'
    source = SOURCE + SNEAKY.format(body=body).replace("{{", "{").replace("}}", "}")
    library = compile_cpu(source, flags=host_flags(), cache_dir=tmp_path, walls=probe_walls()).path
    with ready_child(library) as child:
        run(child)
        with pytest.raises(ChildProtocolError, match="cannot be read"):
            child.collect("a")


LATE = """
#include <thread>
#include <chrono>
extern "C" int32_t kb_late(void* h, int64_t position) {
    Handle* handle = static_cast<Handle*>(h);
    std::thread([=] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); kb_step_until(handle, position, -1); }).detach();
    return 0;
}
"""


def test_an_answer_computed_after_the_clock_stopped_is_not_the_answer(tmp_path: Path) -> None:
    """kb_step returns at once and works on: the copy made at return still holds the junk."""
    source = SOURCE.replace(
        "int32_t kb_step(void* h, int64_t position) { return kb_step_until(h, position, -1); }", ""
    )
    source += LATE.replace("kb_late", "kb_step")
    library = compile_cpu(source, flags=host_flags(), cache_dir=tmp_path, walls=probe_walls()).path
    with ready_child(library) as child:
        run(child)
        time.sleep(0.2)
        got = child.collect("a")
    assert bytes(got.outputs["hidden"][0]) != b"bcdef"
    assert bytes(got.tensors["hidden"].data) == b"bcdef", "it did come, too late"


def talker(answers: str) -> list[str]:
    """A command line that greets and then answers every line with a Python expression of `q`."""
    code = (
        "import sys, json\n"
        'print(json.dumps({"ok": True, "hello": "kernelbraid-child-1"}), flush=True)\n'
        f"for line in sys.stdin:\n    q = json.loads(line)\n    print({answers}, flush=True)\n"
    )
    return [sys._base_executable, "-I", "-S", "-c", code]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ('"not json"', "not JSON"),
        ('"[]"', "no 'ok'"),
        ("'{\"ok\": 1}'", "no 'ok'"),
        ('"[" * 100000', "not JSON"),
        ('json.dumps({"ok": True, "id": "guessed"})', "id"),
        ('json.dumps({"ok": True, "id": q["id"]}) * 2', "not JSON"),
        ('json.dumps({"ok": True, "id": q["id"]}) + "\\n{}"', "more follows"),
        ('json.dumps({"ok": True, "id": q["id"]})', "times"),
        ('json.dumps({"ok": True, "id": q["id"], "ns": [-5], "digest": "x"})', "nanoseconds"),
        ('"x" * (20 << 20)', "longer"),
    ],
)
def test_answers_outside_the_protocol_are_errors(answers: str, words: str) -> None:
    with (
        ChildProcess(probe_walls(), LIMITS, command=talker(answers)) as child,
        pytest.raises(ChildProtocolError, match=words),
    ):
        child.run_chain("a", steps=1, position=0)


def test_a_program_that_does_not_start_is_our_fault() -> None:
    with (
        pytest.raises(BoxError, match="no-such-program"),
        ChildProcess(probe_walls(), LIMITS, command=["/no-such-program"]),
    ):
        pass


def test_a_program_that_never_greets_is_given_up() -> None:
    silent = ChildProcess(probe_walls(), LIMITS, command=["/bin/sleep", "60"], start_timeout_s=0.3)
    with pytest.raises(ChildHung), silent:
        pass
    assert not silent.box.scratch.exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"short", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 3) + b"{]}"],
)
def test_unsound_tensor_files_are_refused(data: bytes) -> None:
    with pytest.raises(ChildProtocolError):
        parse_tensors(data)


def test_tensor_files_that_point_outside_are_refused(build: Build) -> None:
    header = json.dumps({"token": {"dtype": "U8", "shape": [5], "data_offsets": [0, 500]}}).encode()
    data = struct.pack("<Q", len(header)) + header + b"only a few bytes"
    with pytest.raises(ChildProtocolError, match="outside"):
        parse_tensors(data)


def test_nothing_accumulates_while_a_child_lives(build: Build) -> None:
    with ready_child(build(0)) as child:
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
    case = safetensors.save(
        {"token": torch.zeros(4, dtype=torch.bfloat16), "rows": torch.zeros(2, 4, dtype=torch.bfloat16)}
    )
    limits = Limits(wall_s=120, cpu_s=60, memory_bytes=2 << 30, processes=32)
    with ChildProcess.for_torch(
        probe_walls(), limits, problem=problem, weights=[weights], threads=1
    ) as child:
        child.load_torch(problem=problem, module="adding", name="Adding", size={"n": 4}, threads=1)
        child.prepare("a", case, {"hidden": 8}, capacity_pad={"rows": 16})
        fresh = bytes(torch.full((4,), 2.0, dtype=torch.bfloat16).view(torch.uint8).numpy())
        times = child.run_chain("a", steps=2, position=2, feed={"hidden": "token"}, fresh={"token": fresh})
        got = child.collect("a")
        with pytest.raises(ChildRefused, match="phases"):
            child.run_chain("a", steps=1, position=2, stop_after=0)
    assert len(times.inside_ns) == 2
    outputs = [
        torch.frombuffer(bytearray(step), dtype=torch.bfloat16).tolist() for step in got.outputs["hidden"]
    ]
    assert outputs == [[3.0] * 4, [4.0] * 4]
    rows = torch.frombuffer(bytearray(got.tensors["rows"].data), dtype=torch.bfloat16).view(4, 4)
    assert rows[2:].tolist() == [[2.0] * 4, [3.0] * 4]


def test_a_child_starts_quickly(build: Build) -> None:
    spans = []
    for _ in range(7):
        begin = time.monotonic()
        with child_of(build(0)):
            spans.append(time.monotonic() - begin)
    # 30 to 45 ms on an idle machine; the bound leaves room for a busy one
    assert min(spans) < 0.25, [f"{span:.3f}" for span in spans]
    assert os.cpu_count()
