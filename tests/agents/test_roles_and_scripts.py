"""Specialists and scripts are data; what is wrong in them is said in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.roles import RoleError, load_roles
from agents.script import ScriptError, read_script
from sandbox.problem import Problem


def test_the_four_specialists_share_all_kinds_of_the_problem() -> None:
    roles = load_roles()
    assert [r.name for r in roles] == ["attention", "barrier_fusion", "dequant", "moe"]
    kinds = {n.kind for n in Problem.load("kimi_linear_decode", "tiny").graph.nodes}
    assert kinds == {k for r in roles for k in r.kinds}
    assert [r.name for r in roles if r.plans] == ["barrier_fusion"]


def test_a_fifth_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "norms.yaml").write_text("name: norms\nabout: Norms.\nkinds: [add_norm]\n")
    assert [r.name for r in load_roles(folder=tmp_path)] == ["norms"]
    with pytest.raises(RoleError, match="no specialist"):
        load_roles(["other"], tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("name: x\nabout: a\nkinds: [k]\n", "name the file"), ("about: a\nkinds: [k]\n", "is no role"),
     ("name: norms\nabout: a\nkinds: [k]\nextra: 1\n", "is no role"), ("[", "is no role")],
)  # fmt: skip
def test_what_is_no_role(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "norms.yaml").write_text(text)
    with pytest.raises(RoleError, match=said):
        load_roles(folder=tmp_path)


def test_a_kind_has_one_specialist(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nabout: x\nkinds: [k]\n")
    with pytest.raises(RoleError, match="claimed by 'a' and by 'b'"):
        load_roles(folder=tmp_path)


@pytest.mark.parametrize("text", ["{}", "[{specialist: a, other: 1}]", "[", "- {slot: x}"])
def test_what_is_no_script(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ScriptError):
        read_script(tmp_path / "s.yaml")


def test_the_smoke_script_reads(repo: Path) -> None:
    assert len(read_script(repo / "experiments" / "campaigns" / "smoke.script.yaml")) == 5
