"""Skill folders: what is read, what is refused and why, what the tuner gets, and the verb `skills`, with real folders and a compiler."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from agents.skill_format import hints
from agents.skills import (
    SKILLS,
    Offer,
    SkillError,
    choose,
    compile_faults,
    lint,
    load_implementations,
    load_offers,
    load_skill,
    load_skills,
    plain,
    skill_roots,
)
from orchestrator.cli_skills import add_skill, app, begin_skill
from sandbox.checking import CheckPlan
from sandbox.evaluation import Status
from sandbox.judge import Judge, JudgeLimits
from sandbox.problem import Problem
from sandbox.stage_alone import stage_candidate

ENTRY: dict[str, Any] = {"name": "mine/fast", "kind": "topk", "target": "cpu", "sources": ["cpu/topk.hpp"]}
HEADER = "---\nname: mine\ndescription: Chooses experts. Use when a stage is a topk.\n---\n"


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def write_skill(root: Path, *entries: dict[str, Any], name: str = "mine", header: str = HEADER) -> Path:
    """A skill whose source is a copy of the built-in topk."""
    folder = root / name
    (folder / "cpu").mkdir(parents=True)
    (folder / "SKILL.md").write_text(header.replace("name: mine", f"name: {name}"))
    shutil.copy(SKILLS / "moe-router/cpu/topk.hpp", folder / "cpu")
    if entries:
        (folder / "implementations.yaml").write_text(yaml.safe_dump({"implementations": list(entries)}))
    return folder


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(w) for w in words])


# -- what is built in ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", sorted(SKILLS.iterdir()), ids=lambda f: f.name)
def test_built_in_skills_are_clean(folder: Path) -> None:
    assert lint(folder) == []
    assert hints(folder) == []


def test_no_argument_reads_the_built_in_skills_only(tmp_path: Path) -> None:
    write_skill(tmp_path / "data/kernelbraid/skills", ENTRY)
    assert "mine/fast" not in [m.name for m in load_implementations()]
    assert [m.name for m in load_implementations(skill_roots())] == [*(m.name for m in load_implementations()), "mine/fast"]


def test_every_kind_has_a_fast_one_and_an_oracle() -> None:
    offers = load_offers()
    for kind in {o.implementation.kind for o in offers}:
        found = [o.implementation for o in offers]
        assert choose(found, kind, "cpu", oracle=True).oracle
        assert not plain(offers, kind, "cpu").oracle
        starts = [o for o in offers if o.plain and o.implementation.kind == kind]
        assert len(starts) <= 1


# -- knobs and what is chosen -------------------------------------------------------------------------------------------------


def offer_with_knobs(tmp_path: Path) -> Offer:
    knobs = {"A": {"default": 2, "values": [1, 2]}, "B": {"default": 8, "values": [4, 8, 16]}}
    write_skill(tmp_path, ENTRY | {"knobs": knobs})
    return load_offers([tmp_path])[0]


def test_variants_are_all_combinations_with_the_defaults_first(tmp_path: Path) -> None:
    offer = offer_with_knobs(tmp_path)
    variants = [m.knobs for m in offer.variants()]
    assert variants[0] == {"A": 2, "B": 8} == offer.implementation.knobs
    assert sorted((k["A"], k["B"]) for k in variants) == [(1, 4), (1, 8), (1, 16), (2, 4), (2, 8), (2, 16)]
    assert len({m.id for m in offer.variants()}) == 6


def test_with_knobs_keeps_to_the_manifest(tmp_path: Path) -> None:
    offer = offer_with_knobs(tmp_path)
    assert offer.with_knobs(A=1).knobs == {"A": 1, "B": 8}
    with pytest.raises(SkillError, match=r"knob A .* cannot be 3; it may be \[1, 2\]"):
        offer.with_knobs(A=3)
    with pytest.raises(SkillError, match=r"no knob 'C'; it has \['A', 'B'\]"):
        offer.with_knobs(C=3)


def test_plain_is_the_marked_one_else_the_first_fast_one_else_the_oracle(tmp_path: Path) -> None:
    oracle, fast = ENTRY | {"name": "mine/o", "oracle": True}, ENTRY | {"name": "mine/slow"}
    write_skill(tmp_path / "a", oracle)
    write_skill(tmp_path / "b", oracle, ENTRY, fast)
    write_skill(tmp_path / "c", oracle, ENTRY, fast | {"plain": True})
    for root, name in (("a", "mine/o"), ("b", "mine/fast"), ("c", "mine/slow")):
        assert plain(load_offers([tmp_path / root]), "topk", "cpu").name == name
    with pytest.raises(SkillError, match="no implementation of kind 'emit'"):
        plain(load_offers([tmp_path / "a"]), "emit", "cpu")


# -- what a manifest must not say ---------------------------------------------------------------------------------------------

BAD_ENTRIES = [
    ({"colour": 1}, r"'mine/fast'.colour: Extra inputs"),
    ({"oracle": "yes"}, r"'mine/fast'.oracle: Input should be a valid boolean"),
    ({"target": "gpu"}, r"'mine/fast'.target: Input should be 'cpu' or 'cuda'"),
    ({"sources": []}, r"'mine/fast'.sources: .* at least 1 item"),
    ({"sources": "cpu/topk.hpp"}, r"'mine/fast'.sources: Input should be a valid tuple"),
    ({"kind": "top-k"}, r"'mine/fast'.kind: String should match pattern"),
    ({"kind": "topkk"}, r"unknown kind 'topkk' \(did you mean 'topk'\?\)"),
    ({"knobs": {"A": {"default": 3, "values": [1, 2]}}}, r"knobs.A: default 3 is not one of values \[1, 2\]"),
    ({"knobs": {"A": {"default": 1, "values": [1, 1]}}}, r"knobs.A: values \[1, 1\] name one twice"),
    ({"knobs": {"A": {"default": 1, "values": ["1"]}}}, r"knobs.A.values.0: Input should be a valid integer"),
    ({"knobs": {"A": {"default": 2**31, "values": [2**31]}}}, r"knobs.A: values are C ints"),
    ({"knobs": {"a": {"default": 1, "values": [1]}}}, r"knobs.a.\[key\]: a knob becomes a constant of C"),
    ({"knobs": {"ITEMS": {"default": 1, "values": [1]}}}, r"the assembler's constants: take another name"),
    ({"sources": ["cpu/none.hpp"]}, r"no source 'cpu/none.hpp'"),
]


@pytest.mark.parametrize(("change", "message"), BAD_ENTRIES, ids=[str(c)[:40] for c, _ in BAD_ENTRIES])
def test_bad_manifest_names_file_place_and_fault(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = write_skill(tmp_path, ENTRY | change)
    with pytest.raises(SkillError, match=message) as caught:
        load_skills([SKILLS, tmp_path])
    assert str(folder / "implementations.yaml") in str(caught.value)
    assert any(str(caught.value) == fault for fault in lint(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("implementations: [", "is not YAML"),
        ("- 1\n", "must be a mapping"),
        ("implementations: []\n", "at least 1 item"),
        ("implementations:\n- name: mine/fast\n  name: mine/other\n", "key 'name' stands there 2 times"),
        ("implementations:\n- {kind: topk}\n", "entry 1.name: Field required"),
    ],
)
def test_bad_manifest_text(tmp_path: Path, text: str, message: str) -> None:
    folder = write_skill(tmp_path)
    (folder / "implementations.yaml").write_text(text)
    with pytest.raises(SkillError, match=message):
        load_offers([tmp_path])


def test_names_that_are_taken_twice_name_both_files(tmp_path: Path) -> None:
    write_skill(tmp_path / "twice", ENTRY, ENTRY)
    with pytest.raises(SkillError, match=r"two implementations are named \['mine/fast'\]"):
        load_offers([tmp_path / "twice"])
    write_skill(tmp_path / "one", ENTRY, name="first")
    write_skill(tmp_path / "other", ENTRY, name="second")
    with pytest.raises(SkillError, match=r"second/implementations.yaml: a second .* stands in .*first/implementations.yaml"):
        load_offers([tmp_path / "one", tmp_path / "other"])
    write_skill(tmp_path / "more", name="first")
    with pytest.raises(SkillError, match="two skills are named 'first'"):
        load_skills([tmp_path / "one", tmp_path / "more"])
    write_skill(tmp_path / "starts", ENTRY | {"plain": True}, ENTRY | {"name": "mine/b", "plain": True})
    with pytest.raises(SkillError, match="'mine/b' and 'mine/fast' are both plain for kind 'topk'"):
        load_offers([tmp_path / "starts"])


def test_a_new_kind_is_welcome_with_its_oracle(tmp_path: Path) -> None:
    write_skill(tmp_path, ENTRY | {"kind": "mine"}, ENTRY | {"name": "mine/scalar", "kind": "mine", "oracle": True})
    assert [m.kind for m in load_implementations(tmp_path)] == ["mine", "mine"]


# -- where sources may lie ----------------------------------------------------------------------------------------------------


def test_sources_of_neighbours_are_found_in_the_own_root_then_in_the_built_in_one(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, ENTRY | {"sources": ["../moe-router/cpu/topk.hpp"]})
    built_in = (SKILLS / "moe-router/cpu/topk.hpp").read_text().strip() + "\n"
    assert load_implementations(tmp_path)[0].source == load_implementations(folder)[0].source == built_in
    neighbour = write_skill(tmp_path, name="moe-router") / "cpu/topk.hpp"
    neighbour.write_text("// mine\n")
    assert load_implementations(tmp_path)[0].source == "// mine\n"
    assert load_implementations(folder)[0].source == built_in  # one skill by itself has no neighbours


@pytest.mark.parametrize("source", ["../../secret.hpp", "cpu/../../../secret.hpp", "/etc/hostname", "../roots/../../secret.hpp"])
def test_sources_outside_are_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "secret.hpp").write_text("// secret\n")
    write_skill(tmp_path / "roots", ENTRY | {"sources": [source]})
    with pytest.raises(SkillError, match="lies outside the skills folder"):
        load_offers([tmp_path / "roots"])


@pytest.mark.parametrize("link", ["file", "folder", "skill"])
def test_links_out_are_refused(tmp_path: Path, link: str) -> None:
    outside, root = write_skill(tmp_path / "outside", ENTRY), tmp_path / "root"
    root.mkdir()
    if link == "skill":
        (root / "mine").symlink_to(outside)
    else:
        folder = write_skill(root, ENTRY)
        shutil.rmtree(folder / "cpu")
        if link == "folder":
            (folder / "cpu").symlink_to(outside / "cpu")
        else:
            (folder / "cpu").mkdir()
            (folder / "cpu/topk.hpp").symlink_to(outside / "cpu/topk.hpp")
        assert any("is a link out of the folder" in fault for fault in lint(folder))
    with pytest.raises(SkillError, match="lies outside the skills folder"):
        load_offers([root])


def test_roots_that_are_no_skills_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="no skills folder"):
        skill_roots([tmp_path / "none"])
    with pytest.raises(SkillError, match="holds no skill"):
        skill_roots([tmp_path])
    assert skill_roots([SKILLS, SKILLS / "rmsnorm"]) == [SKILLS]


# -- the open format ----------------------------------------------------------------------------------------------------------


def test_a_folder_of_pure_advice_is_a_skill_even_with_a_loose_header(tmp_path: Path) -> None:
    write_skill(tmp_path)
    write_skill(tmp_path, name="loose", header="---\nname: loose\ndescription: a: b\n---\nText\n")
    loose, mine = load_skills([tmp_path])
    assert (mine.description, mine.offers) == ("Chooses experts. Use when a stage is a topk.", ())
    assert (loose.name, loose.description) == ("loose", "")
    assert any("quote values that hold a colon" in fault for fault in lint(loose.folder))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("no header\n", "does not begin with a header"),
        ("---\n- a\n---\n", "must be a mapping"),
        ("---\nname: Mine\ndescription: d\n---\n", "name 'Mine' must be 1 to 64"),
        ("---\nname: mine--x\ndescription: d\n---\n", "single inner hyphens"),
        ("---\nname: other\ndescription: d\n---\n", "not the folder's name 'mine'"),
        ("---\nname: mine\n---\n", "description is missing"),
        (f"---\nname: mine\ndescription: {'d' * 1025}\n---\n", "description has 1025 characters"),
        ("---\nname: mine\ndescription: d\nversion: 1\n---\n", "unknown key 'version'"),
        ("---\nname: mine\ndescription: d\nmetadata: {a: 1}\n---\n", "metadata must map text to text"),
        (f"---\nname: mine\ndescription: d\ncompatibility: {'c' * 501}\n---\n", "compatibility may have 500"),
        ("---\nname: mine\ndescription: d\nlicense: [MIT]\n---\n", "license must be a line of text"),
        (HEADER + "x\n" * 500, "has 501 lines"),
        (HEADER + "see [more](references/more.md)\n", "'references/more.md', which is not there"),
        (HEADER + "see [more](../../x.md)\n", "outside the skill"),
        (HEADER + "see `cpu/deep/topk.hpp`\n", "at most one folder deep"),
    ],
)
def test_lint_names_what_the_format_forbids(tmp_path: Path, header: str, message: str) -> None:
    folder = write_skill(tmp_path)
    (folder / "SKILL.md").write_text(header)
    (folder / "cpu/deep").mkdir()
    shutil.copy(folder / "cpu/topk.hpp", folder / "cpu/deep")
    assert [f for f in lint(folder) if message in f], lint(folder)


def test_lint_of_sources_and_names(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, ENTRY | {"name": "fast"})
    (folder / "cpu/topk.hpp").write_text("#include <vector>\n")
    faults = lint(folder)
    assert [f for f in faults if "should begin with 'mine/'" in f] and [f for f in faults if "has #include" in f]
    assert hints(folder) == []
    (folder / "SKILL.md").write_text("---\nname: mine\ndescription: Chooses experts.\n---\n")
    assert [h for h in hints(folder) if "when to use" in h]


# -- the verb, the compiler and the judge -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["topk", "absorb"])
def test_a_new_skill_works_at_once(tmp_path: Path, judge: Judge, kind: str) -> None:
    made = run("new", "my-skill", "--kind", kind, "--into", tmp_path)
    folder = tmp_path / "my-skill"
    assert (made.exit_code, made.stdout) == (0, f"{folder}\n")
    assert run("lint", folder, "--compile", "--cache", judge.cache).exit_code == 0
    skill = load_skill(folder)
    (impl,) = skill.implementations
    assert not impl.oracle and impl.id != choose(load_implementations(), kind, "cpu", oracle=True).id
    problem = Problem.load("kimi_linear_decode", "tiny")
    node = [n for n in problem.graph.nodes if n.kind == kind][-1]
    candidate = stage_candidate(problem.graph, node.name, next(iter(node.shardings)), impl, judge.threads)
    evaluation = judge.evaluate(candidate, problem, JudgeLimits(checks=CheckPlan(seeds=1), timed=False))
    assert evaluation.status is Status.PASSED, evaluation.log


def test_compile_faults_show_the_compilers_error_and_other_traps(tmp_path: Path, judge: Judge) -> None:
    problem = Problem.load("kimi_linear_decode", "tiny")
    folder = write_skill(tmp_path, ENTRY | {"drops": ["everything"], "knobs": {"T": {"default": 1, "values": [1]}}})
    assert lint(folder) == []
    faults = compile_faults(load_skill(folder), problem, judge)
    assert any("drops 'everything'" in f for f in faults) and any("knob ['T'] hides a constant" in f for f in faults)
    (folder / "implementations.yaml").write_text(yaml.safe_dump({"implementations": [ENTRY]}))
    assert compile_faults(load_skill(folder), problem, judge) == []
    source = folder / "cpu/topk.hpp"
    source.write_text(source.read_text().replace("static void finish", 'static_assert(Cfg::E < 0, "no experts");\n    static void finish'))
    (fault,) = compile_faults(load_skill(folder), problem, judge)
    assert "'mine/fast' does not compile for topk split by" in fault and "no experts" in fault


def test_lint_verb(tmp_path: Path) -> None:
    bad = write_skill(tmp_path, ENTRY | {"kind": "topkk"})
    result = run("lint", bad, "rmsnorm", "--json")
    rows = json.loads(result.stdout.splitlines()[-1])["skills"]
    assert result.exit_code == 1
    assert [(r["skill"], len(r["faults"])) for r in rows] == [("mine", 1), ("rmsnorm", 0)]
    assert run("lint", "rmsnorm").exit_code == 0
    assert run("lint", "rmsnorn").exit_code == 2
    write_skill(tmp_path / "a", ENTRY | {"name": "mine2/fast"}, name="mine2")
    write_skill(tmp_path / "b", ENTRY | {"name": "mine2/fast"}, name="mine3")
    alone = run("lint", "--skills", tmp_path / "a")
    together = run("lint", "--skills", tmp_path / "a", "--skills", tmp_path / "b")
    assert alone.exit_code == 0, alone.output
    assert together.exit_code == 1 and "together: " in together.stdout


def test_list_and_show(tmp_path: Path) -> None:
    write_skill(tmp_path, ENTRY | {"knobs": {"A": {"default": 1, "values": [1, 2], "about": "ways"}}})
    assert "mine/fast  topk for cpu  A=1 of [1, 2]" in run("list", "--skills", tmp_path).stdout
    rows = {row["name"]: row for row in json.loads(run("list", "--skills", tmp_path, "--json").stdout)}
    assert rows["mine"]["implementations"][0]["knobs"]["A"]["values"] == [1, 2] and rows["rmsnorm"]["root"] == str(SKILLS)
    (tmp_path / "mine/SKILL.md").write_text(HEADER + "advice \x1b[31m\n")
    shown = run("show", "mine", "--skills", tmp_path).stdout
    assert "A: ways" in shown and "advice [31m" in shown
    assert json.loads(run("show", "rmsnorm", "--json").stdout)["text"].startswith("---\n")
    missing = run("show", "rmsnorn")
    assert missing.exit_code == 2 and "did you mean 'rmsnorm'?" in missing.stderr


def test_add_copies_a_clean_skill_and_refuses_clashes(tmp_path: Path) -> None:
    users, folder = tmp_path / "data/kernelbraid/skills", write_skill(tmp_path / "work", ENTRY)
    assert run("add", folder).stdout == f"{users / 'mine'}\n"
    assert "mine/fast" in [m.name for m in load_implementations(skill_roots())]
    again = run("add", folder)
    assert again.exit_code == 2 and "--replace takes its place" in again.stderr

    (folder / "cpu/topk.hpp").write_text("// changed\n")
    assert run("add", folder, "--replace").exit_code == 0
    assert load_skill(users / "mine").implementations[0].source == "// changed\n"

    (folder / "implementations.yaml").write_text("implementations: 1\n")
    broken = run("add", folder, "--replace")
    assert broken.exit_code == 2 and "mend it first" in broken.stderr

    other = write_skill(tmp_path / "work", ENTRY | {"name": "rmsnorm/emit"}, name="rmsnorm")
    clash = run("add", other)
    assert clash.exit_code == 2 and "two skills are named 'rmsnorm'" in clash.stderr
    assert [p.name for p in users.iterdir()] == ["mine"]  # as it was


def test_a_replacement_that_clashes_leaves_the_old_skill(tmp_path: Path) -> None:
    users = tmp_path / "users"
    write_skill(users, ENTRY)
    write_skill(users, ENTRY | {"name": "mine/taken"}, name="other")
    with pytest.raises(SkillError, match="a second implementation is named 'mine/taken'"):
        add_skill(write_skill(tmp_path / "work", ENTRY | {"name": "mine/taken"}), users, replace=True)
    assert sorted(p.name for p in users.iterdir()) == ["mine", "other"]
    assert [m.name for m in load_skill(users / "mine").implementations] == ["mine/fast"]


def test_new_refuses_names_and_kinds(tmp_path: Path) -> None:
    for name, kind, message in (("Bad", "topk", "cannot be named"), ("rmsnorm", "topk", "is taken"), ("mine", "topkk", "no kind 'topkk'")):
        with pytest.raises(SkillError, match=message):
            begin_skill(name, kind, tmp_path)
    assert list(tmp_path.iterdir()) == []
