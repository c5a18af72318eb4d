"""The precompiled prelude: built once, used for plain builds, without any change of what is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.box_errors import CompileFailed
from sandbox.compiler import QUIET_FLAGS, compile_cpu, host_flags
from sandbox.judge import Judge
from sandbox.prelude import TEXT

SOURCE = '#include <cmath>\n#include <vector>\nextern "C" int answer() { return static_cast<int>(std::vector<int>(42).size()); }\n'
FLAGS = (*host_flags(), *QUIET_FLAGS)


def test_it_is_built_once_and_changes_no_result(judge: Judge, tmp_path: Path) -> None:
    with_it = compile_cpu(SOURCE, flags=FLAGS, cache_dir=tmp_path / "a", walls=judge.walls)
    built = list((tmp_path / "a" / "preludes").glob("*/prelude.hpp.gch"))
    assert len(built) == 1, "a plain build makes the prelude"
    stamp = built[0].stat().st_mtime_ns
    compile_cpu(SOURCE + "//\n", flags=FLAGS, cache_dir=tmp_path / "a", walls=judge.walls)
    assert built[0].stat().st_mtime_ns == stamp
    without = compile_cpu(SOURCE, flags=(*FLAGS, "-fno-math-errno"), cache_dir=tmp_path / "b", walls=judge.walls)
    assert not (tmp_path / "b" / "preludes").exists(), "other flags are compiled plainly"
    assert with_it.path.stat().st_size == pytest.approx(without.path.stat().st_size, rel=0.05)


def test_a_mistake_is_reported_at_the_sources_own_line(judge: Judge, tmp_path: Path) -> None:
    with pytest.raises(CompileFailed) as failed:
        compile_cpu("int x = nothing;\n", flags=FLAGS, cache_dir=tmp_path, walls=judge.walls)
    assert "candidate.cpp:1:9" in failed.value.log


def test_it_holds_only_headers_that_the_runtime_includes_itself(repo: Path) -> None:
    runtime = "".join(p.read_text() for p in (repo / "sandbox" / "stage_runtime" / "cpu").glob("*.hpp"))
    for line in TEXT.splitlines():
        if line.startswith("#include"):
            assert line in runtime, f"{line}: a source that forgets it would compile here and nowhere else"
