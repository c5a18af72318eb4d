"""Skill folders -> what can be tried: Implementations with the values their knobs may take (docs/skills.md)."""

from __future__ import annotations

import concurrent.futures
import difflib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from agents.skill_format import (
    BODY,
    MANIFEST,
    SKILLS,
    Entry,
    Knob,
    SkillError,
    body_faults,
    find_source,
    header_faults,
    hints,
    read_header,
    read_manifest,
    read_text,
    user_skills,
)
from sandbox.box_errors import CompileFailed, CompileLimit
from sandbox.candidate import Candidate, Implementation
from sandbox.records import Frozen
from sandbox.stage_alone import stage_candidate

if TYPE_CHECKING:  # the judge brings torch along
    from sandbox.judge import Judge
    from sandbox.problem import Problem

__all__ = [
    "SKILLS", "Knob", "Offer", "Skill", "SkillError", "choose", "find_skill", "hints", "lint", "load_implementations",
    "load_offers", "load_skill", "load_skills", "plain", "skill_folders", "skill_roots", "user_skills",
]  # fmt: skip


class Offer(Frozen):
    """An Implementation of a skill at its default knobs, and what its knobs may be set to."""

    implementation: Implementation
    knobs: dict[str, Knob] = {}
    skill: str
    plain: bool = False  # a campaign starts from it

    def with_knobs(self, **knobs: int) -> Implementation:
        """The Implementation with other knob values. Raises SkillError for a knob or a value that the manifest does not allow."""
        for name, value in knobs.items():
            if name not in self.knobs:
                raise SkillError(f"'{self.implementation.name}' has no knob '{name}'; it has {sorted(self.knobs)}")
            if value not in self.knobs[name].values:
                raise SkillError(
                    f"knob {name} of '{self.implementation.name}' cannot be {value}; it may be {list(self.knobs[name].values)}"
                )
        return self.implementation.with_knobs(**knobs)

    def variants(self) -> list[Implementation]:
        """One Implementation for every combination of knob values, the defaults first."""
        combinations = itertools.product(*(knob.values for knob in self.knobs.values()))
        found = [self.implementation.with_knobs(**dict(zip(self.knobs, values, strict=True))) for values in combinations]
        return sorted(found, key=lambda m: m.knobs != self.implementation.knobs)


class Skill(Frozen):
    """A skill folder: advice in SKILL.md (`body`), and what implementations.yaml offers, if there is one."""

    name: str  # the folder's
    description: str = ""
    folder: Path
    root: Path  # the folder of skills that it was found in
    metadata: dict[str, str] = {}
    body: Path
    offers: tuple[Offer, ...] = ()

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        """What it offers, at default knobs."""
        return tuple(offer.implementation for offer in self.offers)


# -- where skills are ---------------------------------------------------------------------------------------------------------


def skill_roots(extra: Sequence[Path] = ()) -> list[Path]:
    """Folders of skills: the built-in ones, the user's if there are any, then `extra`. Each of `extra` is a folder of skills, or
    one skill. Raises SkillError for an extra folder that is neither."""
    for root in extra:
        if not root.is_dir():
            raise SkillError(f"no skills folder '{root}': give a folder of skills, or one skill")
        if not skill_folders(root):
            raise SkillError(f"'{root}' holds no skill: a skill is a folder with {BODY}")
    found: dict[Path, Path] = {}
    for root in (SKILLS, *([user_skills()] if user_skills().is_dir() else []), *extra):
        if not (_is_skill(root) and root.resolve().parent in found):  # one skill of a root that is read anyway
            found.setdefault(root.resolve(), root)
    return list(found.values())


def skill_folders(root: Path) -> list[Path]:
    """The skill folders of a root, by name, read or not; a root that is a skill itself is the only one."""
    if _is_skill(root):
        return [root]
    return sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith(".") and _is_skill(f)) if root.is_dir() else []


def _is_skill(folder: Path) -> bool:
    return (folder / BODY).is_file() or (folder / MANIFEST).is_file()


def find_skill(skills: Sequence[Skill], name: str) -> Skill:
    """The skill of that name. Raises SkillError with the nearest names."""
    for skill in skills:
        if skill.name == name:
            return skill
    raise SkillError(f"no skill '{name}'{_near(name, [s.name for s in skills])}; there are {[s.name for s in skills]}")


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f" (did you mean '{near[0]}'?)" if near else ""


# -- loading ------------------------------------------------------------------------------------------------------------------


def load_skills(roots: Sequence[Path]) -> list[Skill]:
    """Every skill of the roots, in their order, by folder name within a root.

    Raises SkillError, with the files, for what implementations.yaml must not say; for two skills or two implementations of one
    name; for two plain starts of one kind and target in one root; for a kind that has no oracle, here or built in."""
    return _checked([_load(folder, root) for root in roots for folder in skill_folders(root)])


def _checked(skills: list[Skill]) -> list[Skill]:
    folders: dict[str, Path] = {}
    named: dict[str, Path] = {}
    starts: dict[tuple[Path, str, str], str] = {}
    for skill in skills:
        if skill.name in folders:
            raise SkillError(f"two skills are named '{skill.name}': {folders[skill.name]} and {skill.folder}; rename or remove one")
        folders[skill.name] = skill.folder
        for offer in skill.offers:
            impl, path = offer.implementation, skill.folder / MANIFEST
            if impl.name in named:
                raise SkillError(
                    f"{path}: a second implementation is named '{impl.name}', the first stands in {named[impl.name]}; rename one"
                )
            named[impl.name] = path
            key = (skill.root, impl.kind, impl.target)
            if offer.plain and key in starts:
                raise SkillError(
                    f"{path}: '{impl.name}' and '{starts[key]}' are both plain for kind '{impl.kind}' and target {impl.target}"
                )
            if offer.plain:
                starts[key] = impl.name
    _require_oracles(skills)
    return skills


def _require_oracles(skills: Sequence[Skill]) -> None:
    """A kind is known by its scalar oracle: without one a failing kernel cannot be bisected, and a misspelt kind would never be tried."""
    offers = [offer for skill in skills for offer in skill.offers]
    known = {o.implementation.kind for o in offers if o.implementation.oracle}
    if all(o.implementation.kind in known for o in offers):
        return
    builtin = (
        e for folder in skill_folders(SKILLS) if (folder / MANIFEST).is_file() for e in read_manifest(folder / MANIFEST).implementations
    )
    known |= {e.kind for e in builtin if e.oracle}
    for skill in skills:
        for kind in (m.kind for m in skill.implementations):
            if kind not in known:
                raise SkillError(
                    f"{skill.folder / MANIFEST}: unknown kind '{kind}'{_near(kind, sorted(known))}; the skills have {sorted(known)}. "
                    "A new kind needs an implementation with 'oracle: true'"
                )


def load_offers(roots: Sequence[Path] = (SKILLS,)) -> list[Offer]:
    """Every Implementation of every skill with its knobs, in the order of roots, folders and manifests. Raises SkillError."""
    return [offer for skill in load_skills(roots) for offer in skill.offers]


def load_implementations(root: Path | Sequence[Path] = SKILLS) -> list[Implementation]:
    """Every Implementation of one root or several, with default knobs, in the order of `load_offers`. Raises SkillError."""
    return [offer.implementation for offer in load_offers([root] if isinstance(root, Path) else root)]


def load_skill(folder: Path, root: Path | None = None) -> Skill:
    """One skill. root: the folder of skills that it stands in; by default the built-in or the user's one if it does, else it
    stands alone. Raises SkillError as `load_skills` does."""
    return _checked([_load(folder, root or _home(folder))])[0]


def _home(folder: Path) -> Path:
    homes = [root for root in (SKILLS, user_skills()) if folder.resolve().parent == root.resolve()]
    return (homes or [folder])[0]


def _load(folder: Path, root: Path) -> Skill:
    header, name = read_header(folder / BODY), folder.resolve().name
    entries = read_manifest(folder / MANIFEST).implementations if (folder / MANIFEST).is_file() else ()
    metadata = header.get("metadata")
    return Skill(
        name=name, description=str(header.get("description") or ""), folder=folder, root=root, body=folder / BODY,
        metadata={str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {},
        offers=tuple(_offer(entry, folder, root) for entry in entries),
    )  # fmt: skip


def _offer(entry: Entry, folder: Path, root: Path) -> Offer:
    texts = [read_text(find_source(source, folder, root)).strip() for source in entry.sources]
    name = folder.resolve().name
    impl = Implementation(
        name=entry.name, kind=entry.kind, target=entry.target, source="\n\n".join(texts) + "\n",
        knobs={k: knob.default for k, knob in entry.knobs.items()}, shardings=entry.shardings, numerics=entry.numerics,
        drops=entry.drops, oracle=entry.oracle, author=f"skill:{name}",
    )  # fmt: skip
    return Offer(implementation=impl, knobs=entry.knobs, skill=name, plain=entry.plain)


# -- choosing -----------------------------------------------------------------------------------------------------------------


def choose(implementations: list[Implementation], kind: str, target: str, *, oracle: bool = False) -> Implementation:
    """The first implementation of a kind for a target: the scalar oracle, or a fast one."""
    fits = [m for m in implementations if m.kind == kind and m.target == target]
    for m in fits:
        if m.oracle == oracle:
            return m
    if fits and not oracle:
        return fits[0]
    raise SkillError(
        f"no {'oracle' if oracle else 'implementation'} of kind '{kind}' for {target}; the skills have {[m.name for m in fits]}"
    )


def plain(offers: Sequence[Offer], kind: str, target: str) -> Implementation:
    """What a campaign starts from: the first offer marked plain, else the first that is no oracle, else the oracle. Raises SkillError."""
    for offer in offers:
        if offer.plain and offer.implementation.kind == kind and offer.implementation.target == target:
            return offer.implementation
    return choose([o.implementation for o in offers], kind, target)


# -- checking -----------------------------------------------------------------------------------------------------------------


def lint(folder: Path, root: Path | None = None) -> list[str]:
    """What is wrong with a skill folder, one sentence each: the open format, the manifest, the sources. Empty if nothing is.
    root: as in `load_skill`."""
    if not folder.is_dir():
        return [f"no folder '{folder}'"]
    home = root or _home(folder)
    faults = header_faults(folder) + body_faults(folder, (SKILLS,) if home == folder else (home, SKILLS))
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            faults.append(f"'{path.relative_to(folder)}' is a link out of the folder: copy the file")
    try:
        for impl in load_skill(folder, home).implementations:
            if not impl.name.startswith(f"{folder.resolve().name}/"):
                faults.append(f"{MANIFEST}: name '{impl.name}' should begin with '{folder.resolve().name}/', so that no other skill has it")
            if re.search(r"^\s*#\s*include", impl.source, re.M):
                faults.append(
                    f"{MANIFEST}: a source of '{impl.name}' has #include; it is assembled inside a namespace, the runtime includes all"
                )
    except SkillError as error:
        faults.append(str(error))
    return faults


def compile_faults(skill: Skill, problem: Problem, judge: Judge) -> list[str]:
    """Compile each cpu Implementation at default knobs for every stage of its kind and every split that it accepts, as the judge
    would for the stage alone. Returns the compiler's first errors; also knobs that hide a constant of a stage, and rounding points
    that no plan of the problem allows to drop. Raises UnavailableError or NoWallsError where nothing can be compiled."""
    plans = [yaml.safe_load(problem.plan_file(name).read_text()) for name in problem.spec.plans]
    allowed = sorted({point.partition(":")[0] for plan in plans for point in plan.get("dropped_roundings", ())})
    stages = {node.short: node for node in problem.graph.nodes}  # the last layer of each name
    faults: list[str] = []
    jobs: list[tuple[str, Candidate]] = []
    for impl in (m for m in skill.implementations if m.target == "cpu"):
        for point in (p for p in impl.drops if p not in allowed):
            faults.append(f"'{impl.name}' drops '{point}', which no plan of {problem.name} allows; they allow {allowed}")
        for node in (n for n in stages.values() if n.kind == impl.kind):
            splits = [s for s in node.shardings.values() if impl.accepts(s.name)]
            hidden = sorted(set(impl.knobs) & set(node.dims).union(*(s.dims for s in splits)))
            if hidden:
                faults.append(f"'{impl.name}': knob {hidden} hides a constant of stage {node.short}: take another name")
            for split in splits:
                where = f"'{impl.name}' does not compile for {node.short} split by {split.name}"
                jobs.append((where, stage_candidate(problem.graph, node.name, split.name, impl, judge.threads)))
    with concurrent.futures.ThreadPoolExecutor(judge.threads) as pool:
        errors = pool.map(lambda job: _compiler_says(judge, job[1]), jobs)
        return faults + [f"{where}: {error}" for (where, _), error in zip(jobs, errors, strict=True) if error]


def _compiler_says(judge: Judge, candidate: Candidate) -> str:
    """The first errors of the compiler; empty if there are none."""
    try:
        judge.compile(candidate)
    except (CompileFailed, CompileLimit) as error:
        lines = [line for line in error.log.splitlines() if "error" in line] or error.log.splitlines()
        return " | ".join(lines[:3]) or str(error)
    return ""
