"""The verb `skills`: look at skill folders, check them, begin one, add one. stdout is data, stderr is talk."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer
from rich.console import Console

from agents.skill_format import BODY, MANIFEST, find_source, is_name, read_manifest, read_text
from agents.skills import (
    SKILLS,
    Offer,
    Skill,
    SkillError,
    compile_faults,
    find_skill,
    hints,
    lint,
    load_skill,
    load_skills,
    skill_folders,
    skill_roots,
    user_skills,
)
from orchestrator.cli_errors import clean, plain_errors

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at skill folders, check them, begin one, add one.")

Extra = Annotated[list[Path] | None, typer.Option("--skills", help="Another folder of skills, or one skill; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="The last line of stdout is JSON.")]
Into = Annotated[Path | None, typer.Option(help="The folder that the skill's folder is made in.")]


def _say(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(clean(text), markup=False)


@app.command("list")
def list_skills(skills: Extra = None, as_json: Json = False) -> None:
    """List every skill with the kinds and implementations that it offers: built-in ones, the user's, those of --skills."""
    with plain_errors():
        found = load_skills(skill_roots(skills or []))
    if as_json:
        sys.stdout.write(json.dumps([_skill_json(skill) for skill in found]) + "\n")
        return
    for skill in found:
        kinds = ", ".join(dict.fromkeys(m.kind for m in skill.implementations)) or "advice only"
        sys.stdout.write(clean(f"{skill.name}  ({kinds})  in {skill.root}\n"))
        sys.stdout.writelines(f"  {_offer_line(offer)}\n" for offer in skill.offers)


@app.command()
def show(name: str, skills: Extra = None, as_json: Json = False) -> None:
    """Show one skill: what it offers, then its SKILL.md."""
    with plain_errors():
        skill = find_skill(load_skills(skill_roots(skills or [])), name)
        text = read_text(skill.body) if skill.body.is_file() else ""
    if as_json:
        sources = {m.name: m.source for m in skill.implementations}
        sys.stdout.write(json.dumps(_skill_json(skill) | {"text": text, "sources": sources}) + "\n")
        return
    sys.stdout.write(f"{skill.name}  in {skill.folder}\n")
    for offer in skill.offers:
        sys.stdout.write(f"  {_offer_line(offer)}\n")
        sys.stdout.writelines(f"    {knob_name}: {clean(knob.about)}\n" for knob_name, knob in offer.knobs.items() if knob.about)
        if offer.implementation.numerics:
            sys.stdout.write(f"    numerics: {clean(offer.implementation.numerics)}\n")
    sys.stdout.write(f"\n{clean(text)}")


def _offer_line(offer: Offer) -> str:
    m = offer.implementation
    marks = [word for word, is_so in (("oracle", m.oracle), ("plain start", offer.plain)) if is_so]
    knobs = [f"{name}={knob.default} of {list(knob.values)}" for name, knob in offer.knobs.items()]
    splits = [] if m.shardings == ("*",) else [f"splits {', '.join(m.shardings)}"]
    return "  ".join([f"{m.name}  {m.kind} for {m.target}", *marks, *splits, *knobs])


def _skill_json(skill: Skill) -> dict[str, Any]:
    offers = [
        {"name": o.implementation.name, "kind": o.implementation.kind, "target": o.implementation.target, "id": o.implementation.id,
         "oracle": o.implementation.oracle, "plain": o.plain, "shardings": list(o.implementation.shardings),
         "numerics": o.implementation.numerics, "drops": list(o.implementation.drops),
         "knobs": {name: knob.model_dump(mode="json") for name, knob in o.knobs.items()}}
        for o in skill.offers
    ]  # fmt: skip
    return {"name": skill.name, "description": skill.description, "folder": str(skill.folder), "root": str(skill.root),
            "metadata": skill.metadata, "implementations": offers}  # fmt: skip


@app.command("lint")
def lint_skills(
    targets: Annotated[list[str] | None, typer.Argument(metavar="[NAME or FOLDER ...]", help="Default: every skill.")] = None,
    skills: Extra = None,
    compile_too: Annotated[bool, typer.Option("--compile", help="Compile every implementation for every stage of its kind.")] = False,
    problem: Annotated[str, typer.Option(help="With --compile: the problem whose stages are meant.")] = "kimi_linear_decode",
    size: Annotated[str, typer.Option(help="With --compile: one of its sizes.")] = "tiny",
    cache: Annotated[Path | None, typer.Option(help="With --compile: compiled libraries. Default: the user's cache folder.")] = None,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Compile even where nothing can contain the compiler.")] = False,
    as_json: Json = False,
) -> None:
    """Check skills: the open SKILL.md format, implementations.yaml, the sources, with --compile the compiler. Exit 1 on faults.

    Examples:

      kernelbraid skills lint

      kernelbraid skills lint ./my-skill --compile
    """
    with plain_errors():
        roots = skill_roots(skills or [])
        folders = _lint_targets(targets or [], roots)
        found = {folder: lint(folder) for folder in folders}
        if compile_too:
            from sandbox.judge import Judge
            from sandbox.problem import Problem

            judge = Judge(cache or platformdirs.user_cache_path("kernelbraid"), unsafe=unsafe)
            for folder in (f for f in folders if not found[f]):
                _say(f"compiling the implementations of {folder.name}")
                found[folder] = compile_faults(load_skill(folder), Problem.load(problem, size), judge)
        together = [] if targets else _together(roots)
    for folder, faults in found.items():
        name = folder.resolve().name
        sys.stdout.writelines(f"{name}: {clean(fault)}\n" for fault in faults)
        sys.stdout.writelines(f"{name}: hint: {hint}\n" for hint in hints(folder))
        if not faults:
            sys.stdout.write(f"{name}: ok\n")
    sys.stdout.writelines(f"together: {clean(fault)}\n" for fault in together)
    if as_json:
        rows = [{"skill": f.resolve().name, "folder": str(f), "faults": faults, "hints": hints(f)} for f, faults in found.items()]
        sys.stdout.write(json.dumps({"skills": rows, "together": together}) + "\n")
    raise typer.Exit(1 if together or any(found.values()) else 0)


def _lint_targets(targets: Sequence[str], roots: Sequence[Path]) -> list[Path]:
    """The folders to check: all of them, or those named. A word is a skill of that name, else a folder."""
    known = {folder.resolve().name: folder for root in reversed(roots) for folder in skill_folders(root)}
    for target in targets:
        if target not in known and not Path(target).is_dir():
            raise SkillError(f"'{target}' is neither a skill nor a folder; the skills are {sorted(known)}")
    return [known.get(t) or Path(t) for t in targets] or [folder for root in roots for folder in skill_folders(root)]


def _together(roots: Sequence[Path]) -> list[str]:
    """What only shows when the skills are loaded side by side: names that are taken twice."""
    try:
        load_skills(roots)
    except SkillError as error:
        return [str(error)]
    return []


@app.command()
def new(
    name: str,
    kind: Annotated[str, typer.Option(help="The stage kind to write for; `skills list` shows them.")],
    into: Into = None,
) -> None:
    """Begin a skill that works at once: a SKILL.md to fill in, and an implementation that is a copy of the kind's scalar oracle.

    Example: kernelbraid skills new my-gemv --kind linear_w4
    """
    with plain_errors():
        folder = begin_skill(name, kind, into or Path.cwd())
    _say(f"next: edit {folder}, then `kernelbraid skills lint {folder} --compile`, then `kernelbraid run --skills {folder}`")
    sys.stdout.write(f"{folder}\n")


def begin_skill(name: str, kind: str, into: Path) -> Path:
    """Make the folder into/name. Raises SkillError if the name is taken or the kind has no oracle."""
    if not is_name(name):
        raise SkillError(f"a skill cannot be named '{name}': use a-z, 0-9 and single inner hyphens, at most 64")
    skills = load_skills(skill_roots())
    if name in [s.name for s in skills] or (into / name).exists():
        raise SkillError(f"'{name}' is taken; choose another name")
    oracles = {o.implementation.kind: (s, o.implementation.name) for s in reversed(skills) for o in s.offers
               if o.implementation.oracle and o.implementation.target == "cpu"}  # fmt: skip
    if kind not in oracles:
        raise SkillError(f"no kind '{kind}'; there are {sorted(oracles)}")
    skill, oracle = oracles[kind]
    entry = next(e for e in read_manifest(skill.folder / MANIFEST).implementations if e.name == oracle)
    folder = into / name
    (folder / "cpu").mkdir(parents=True)
    sources = [_begin_source(source, skill, folder, kind) for source in entry.sources]
    manifest = _MANIFEST.format(name=name, kind=kind, sources=", ".join(sources), shardings=json.dumps(entry.shardings),
                                numerics=json.dumps(f"as {oracle}: {entry.numerics}"), drops=json.dumps(entry.drops))  # fmt: skip
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")
    (folder / BODY).write_text(_BODY.format(name=name, kind=kind, oracle=oracle), encoding="utf-8")
    return folder


def _begin_source(source: str, skill: Skill, folder: Path, kind: str) -> str:
    """Copy the file that holds the Stage (and helpers that are not built in); name built-in helpers where they stand."""
    path = find_source(source, skill.folder, skill.root)
    text = read_text(path)
    is_stage = re.search(r"\bstruct\s+Stage\b", text) is not None
    if not is_stage and path.is_relative_to(SKILLS):
        return f"../{path.relative_to(SKILLS).as_posix()}"
    target = f"cpu/{kind}.hpp" if is_stage else f"cpu/{path.name}"
    note = f"// Begun as a copy of the scalar oracle of {skill.name}: replace it by something faster.\n" if is_stage else ""
    (folder / target).write_text(note + text, encoding="utf-8")
    return target


@app.command()
def add(
    folder: Path,
    into: Into = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of a skill of that name in the same folder.")] = False,
) -> None:
    """Check a skill folder, then copy it to the user's skills, which every campaign reads."""
    with plain_errors():
        faults = lint(folder)
        for fault in faults:
            _say(f"{folder.resolve().name}: {fault}")
        if faults:
            raise SkillError(f"'{folder}' was not added; mend it first")
        target = add_skill(folder.resolve(), into or user_skills(), replace=replace)
    sys.stdout.write(f"{target}\n")


def add_skill(folder: Path, into: Path, *, replace: bool = False) -> Path:
    """Copy a skill folder into a folder of skills. Raises SkillError, and leaves everything as it was, if a name is taken."""
    target, draft, old = into / folder.name, into / f".{folder.name}.new", into / f".{folder.name}.old"
    if target.exists() and not replace:
        raise SkillError(f"{target} is there already; --replace takes its place")
    if folder == target.resolve():
        raise SkillError(f"{folder} is where it would be copied to")
    into.mkdir(parents=True, exist_ok=True)
    for leftover in (draft, old):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(folder, draft, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    if target.exists():
        target.rename(old)
    draft.rename(target)
    try:
        load_skills(skill_roots([into]))  # names that clash show only side by side
    except SkillError:
        shutil.rmtree(target)
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return target


_MANIFEST = """\
# What kernelbraid can try of this skill. Fields: docs/skills.md.
implementations:
  - name: {name}/draft
    kind: {kind}
    target: cpu
    sources: [{sources}]  # concatenated in this order
    shardings: {shardings}
    # A knob is a constant that the tuner may set; the source reads it as Cfg::UNROLL (the template parameter of Stage):
    #   UNROLL: {{default: 4, values: [2, 4, 8], about: "rows at a time"}}
    knobs: {{}}
    numerics: {numerics}
    drops: {drops}  # rounding points of the definition that it skips
    oracle: false
"""

_BODY = """\
---
name: {name}
description: A draft for stages of kind {kind}, begun as a copy of the scalar oracle. Use when a campaign works on a {kind} stage. Say here what this skill does better, and for which shapes.
metadata:
  kinds: {kind}
  targets: cpu
---
# {name}

What bounds this stage (bytes, arithmetic, latency), and the idea that gets near the bound.

## Advice

- What to do, with the number that says why. What was tried and did not help belongs here too.

## Measured

Machine, compiler, shape, time, bound. The oracle to compare with is `{oracle}`.

## When not to use it

- Shapes or inputs that it refuses.
"""
