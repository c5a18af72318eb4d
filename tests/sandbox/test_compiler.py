"""Compiling in the box: the cache, the lock, and the attacks a source can make on its compiler."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandbox import compiler
from sandbox.box_errors import CompileFailed, CompileLimit, FlagRefused
from sandbox.compiler import Compiled, compile_cpu, find_compiler, host_flags, prune_cache
from sandbox.errors import UnavailableError
from sandbox.isolation import Limits
from sandbox.walls import Level, Walls, probe_walls

FLAGS = ("-O1", "-std=c++20", "-fPIC", "-shared")
ANSWER = 'extern "C" int answer() {{ return {}; }}\n'
LIMITS = Limits(wall_s=60, cpu_s=60, memory_bytes=1 << 30, processes=16, output_bytes=64 << 10)


@pytest.fixture
def walls() -> Walls:
    return probe_walls()


def build(source: str, cache: Path, walls: Walls, **options: object) -> Compiled:
    """compile_cpu with this file's flags and limits unless told otherwise."""
    settings: dict[str, object] = {"flags": FLAGS, "limits": LIMITS, **options}
    return compile_cpu(source, cache_dir=cache, walls=walls, **settings)  # type: ignore[arg-type]


def answer(compiled: Compiled) -> int:
    """Call the library, in this process: the sources here are ours."""
    return int(ctypes.CDLL(str(compiled.path)).answer())


def test_a_library_is_built_once_and_found_again(tmp_path: Path, walls: Walls) -> None:
    first = build(ANSWER.format(42), tmp_path, walls)
    again = build(ANSWER.format(42), tmp_path, walls)
    assert answer(first) == 42
    assert not first.cached
    assert again.cached
    assert (again.path, again.key, again.seconds, again.log) == (
        first.path,
        first.key,
        first.seconds,
        first.log,
    )
    assert not list(tmp_path.glob(".[0-9a-f]*")), "no drafts are left"


def test_everything_that_matters_is_in_the_key(tmp_path: Path, walls: Walls) -> None:
    include = tmp_path / "include"
    include.mkdir()
    header = include / "value.hpp"
    header.write_text("#define VALUE 1\n")
    source = '#include "value.hpp"\n' + ANSWER.format("VALUE + EXTRA")
    cache = tmp_path / "cache"

    def made(*flags: str) -> Compiled:
        return build(source, cache, walls, flags=(*FLAGS, *flags), include_dirs=[include])

    one = made("-DEXTRA=0")
    two = made("-DEXTRA=5")
    header.write_text("#define VALUE 2\n")
    three = made("-DEXTRA=0")
    assert [answer(c) for c in (one, two, three)] == [1, 6, 2]
    assert len({c.key for c in (one, two, three)}) == 3
    (include / "other.hpp").write_text("// another header\n")
    assert not made("-DEXTRA=0").cached


def test_a_damaged_entry_is_built_anew(tmp_path: Path, walls: Walls) -> None:
    first = build(ANSWER.format(3), tmp_path, walls)
    first.path.write_bytes(first.path.read_bytes()[:100])
    again = build(ANSWER.format(3), tmp_path, walls)
    assert not again.cached
    assert answer(again) == 3


def test_an_error_carries_the_compilers_words(tmp_path: Path, walls: Walls) -> None:
    with pytest.raises(CompileFailed) as caught:
        build("int f() { return undeclared_thing; }\n", tmp_path, walls)
    assert "undeclared_thing" in caught.value.log
    assert "undeclared_thing" in str(caught.value)
    assert not list(tmp_path.glob("*.so"))


def test_warnings_are_kept(tmp_path: Path, walls: Walls) -> None:
    made = build("static int unused;\n" + ANSWER.format(1), tmp_path, walls, flags=(*FLAGS, "-Wall"))
    assert "unused" in made.log


@pytest.mark.parametrize(
    "flag",
    ["-fplugin=evil", "-Wl,-rpath=/x", "-o/tmp/x", "-I/etc", "-include", "@file", "-fprofile-use=/etc/passwd"]
    + [
        "-specs=/tmp/x",
        "-B/tmp",
        "-x",
        "-wrapper",
        "-Wp,-MD,/x",
        "-fdump-tree-all",
        "-DX=$(id)",
        "-save-temps",
        "",
    ],
)
def test_flags_that_name_files_or_programs_are_refused(flag: str, tmp_path: Path, walls: Walls) -> None:
    with pytest.raises(FlagRefused):
        build(ANSWER.format(1), tmp_path, walls, flags=(*FLAGS, flag))


def test_useful_flags_are_allowed() -> None:
    useful = (
        "-march=native",
        "-mavx512f",
        "-fno-exceptions",
        "-ffast-math",
        "-funroll-loops",
        "-fopenmp",
        "-DN=4",
    )
    compiler.check_flags((*host_flags(), *useful, "-Wall", "-Wextra", "-g", "-fsanitize=thread", "-lm"))


@pytest.mark.parametrize("path", ["/etc/hostname", "/etc/passwd", "/root/.bashrc", "/proc/1/environ"])
@pytest.mark.parametrize("how", ['#include "{}"\n', 'asm(".incbin \\"{}\\"");\n'])
def test_private_files_cannot_be_compiled_in(path: str, how: str, tmp_path: Path, walls: Walls) -> None:
    if walls.level in (Level.UID, Level.NONE):
        pytest.skip("there is no file-system wall here")
    os.environ["KERNELBRAID_TEST_SECRET"] = "sk-compile-secret"
    try:
        made = build(how.format(path) + ANSWER.format(1), tmp_path, walls)
    except CompileFailed as error:
        assert "sk-compile-secret" not in error.log
    else:  # /proc/1/environ exists inside, and is empty
        assert path == "/proc/1/environ"
        assert b"sk-compile-secret" not in made.path.read_bytes()
    finally:
        del os.environ["KERNELBRAID_TEST_SECRET"]


def test_a_private_file_beside_the_cache_is_not_there(tmp_path: Path, walls: Walls) -> None:
    if walls.level in (Level.UID, Level.NONE):
        pytest.skip("there is no file-system wall here")
    secret = tmp_path / "secret.hpp"
    secret.write_text("#define SECRET 1\n")
    with pytest.raises(CompileFailed, match="No such file"):
        build(f'#include "{secret}"\n', tmp_path / "cache", walls)


def test_a_template_bomb_ends_as_a_limit(tmp_path: Path, walls: Walls) -> None:
    bomb = (
        "template <unsigned long N, unsigned long M> struct T { T<N - 1, 2 * M> a; T<N - 1, 2 * M + 1> b; };\n"
        "template <unsigned long M> struct T<0, M> { char c; };\nT<40, 1> t;\n"
    )
    begin = time.monotonic()
    with pytest.raises(CompileLimit) as caught:
        build(bomb, tmp_path, walls, limits=Limits(wall_s=3, cpu_s=60, memory_bytes=256 << 20, processes=16))
    assert caught.value.which in ("wall", "memory")
    assert time.monotonic() - begin < 10


def test_a_compiler_that_takes_too_much_memory_ends_as_a_limit(tmp_path: Path, walls: Walls) -> None:
    if not walls.has("cgroup-memory"):
        pytest.skip("memory is not held by a group here")
    source = (
        "constexpr int n = 1 << 26;\n"
        "struct A { int v[n]; constexpr A() : v() { for (int i = 0; i < n; ++i) v[i] = i; } };\n"
        "constexpr A a;\nint f() { return a.v[5]; }\n"
    )
    flags = (*FLAGS, "-fconstexpr-loop-limit=2147483647", "-fconstexpr-ops-limit=9999999999")
    limits = Limits(wall_s=30, cpu_s=60, memory_bytes=192 << 20, processes=16)
    with pytest.raises(CompileLimit) as caught:
        build(source, tmp_path, walls, limits=limits, flags=flags)
    assert caught.value.which == "memory"


def test_a_flood_of_errors_is_capped(tmp_path: Path, walls: Walls) -> None:
    source = "#define A x y z w;\n#define B A A A A A A A A\n#define C B B B B B B B B\n" + "C C C C C C C C\n" * 40
    with pytest.raises((CompileLimit, CompileFailed)) as caught:
        build(source, tmp_path, walls, limits=Limits(wall_s=30, memory_bytes=1 << 30, output_bytes=20_000))
    assert isinstance(caught.value, CompileLimit | CompileFailed)
    assert len(caught.value.log) < 60_000


def test_an_output_bomb_ends_as_a_limit(tmp_path: Path, walls: Walls) -> None:
    source = 'asm(".fill 0x7fffffff, 1, 65");\n'
    limits = Limits(wall_s=30, cpu_s=60, memory_bytes=1 << 30, file_bytes=8 << 20, processes=16)
    with pytest.raises((CompileLimit, CompileFailed)):
        build(source, tmp_path, walls, limits=limits)
    assert not list(tmp_path.glob("*.so"))


def _build_in_process(cache: str, queue: object) -> None:
    made = build(ANSWER.format(77), Path(cache), probe_walls())
    queue.put(made.cached)  # type: ignore[attr-defined]


def test_two_processes_do_not_build_twice(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_build_in_process, args=(str(tmp_path), queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    cached = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(cached) == [False, True, True]


def test_threads_share_a_build_too(tmp_path: Path, walls: Walls) -> None:
    made: list[Compiled] = []
    threads = [threading.Thread(target=lambda: made.append(build(ANSWER.format(5), tmp_path, walls))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(m.cached for m in made) == [False, True, True]


def test_a_builder_killed_while_it_holds_the_lock_blocks_nobody(tmp_path: Path, walls: Walls) -> None:
    source = ANSWER.format(6)
    key = compiler._key(source, FLAGS, find_compiler().version, ())
    program = (
        "import time; from pathlib import Path; from sandbox.compiler import _building\n"
        f"with _building(Path({str(tmp_path)!r}), {key!r}, 5):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    owner.kill()
    owner.wait()
    owner.stdout.close()
    begin = time.monotonic()
    assert answer(build(source, tmp_path, walls)) == 6
    assert time.monotonic() - begin < 20


def test_a_stuck_builder_is_outwaited(tmp_path: Path, walls: Walls) -> None:
    source = ANSWER.format(8)
    key = compiler._key(source, FLAGS, find_compiler().version, ())
    with compiler._building(tmp_path, key, 1):
        begin = time.monotonic()
        with compiler._building(tmp_path, key, 0.3):
            assert 0.2 < time.monotonic() - begin < 5


def test_the_cache_keeps_to_its_size(tmp_path: Path, walls: Walls) -> None:
    made = [build(ANSWER.format(n), tmp_path, walls) for n in range(3)]
    for age, one in enumerate(made):
        os.utime(one.path.with_suffix(".json"), (1e9 + age, 1e9 + age))
    draft = tmp_path / ".deadbeef"
    draft.write_bytes(b"half a library")
    os.utime(draft, (1e9, 1e9))
    size = made[0].path.stat().st_size
    assert prune_cache(tmp_path, max_bytes=size + size // 2) == 2
    assert [one.path.exists() for one in made] == [False, False, True]
    assert not draft.exists()


def test_a_missing_compiler_is_not_the_candidates_fault(tmp_path: Path, walls: Walls) -> None:
    with pytest.raises(UnavailableError, match="install"):
        build(ANSWER.format(1), tmp_path, walls, compiler="no-such-compiler-here")


@pytest.mark.parametrize("level", [Level.BWRAP, Level.NAMESPACES, Level.UID])
def test_weaker_levels_compile_too(level: Level, tmp_path: Path) -> None:
    made = build(ANSWER.format(9), tmp_path, probe_walls(level=level))
    assert answer(made) == 9
