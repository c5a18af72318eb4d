"""The two files of a skill folder: SKILL.md (the open Agent Skills format) and implementations.yaml (ours, docs/skills.md).

Reading is lenient about SKILL.md, so that any published folder can be dropped in, and strict about implementations.yaml,
because what it says decides what is compiled. `header_faults` and `body_faults` are the open format's rules, for `lint`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import yaml
from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, ValidationError, model_validator

from sandbox.candidate import Target
from sandbox.errors import KernelbraidError
from sandbox.records import Frozen

SKILLS = Path(__file__).resolve().parent.parent / "skills"  # the built-in ones
BODY, MANIFEST = "SKILL.md", "implementations.yaml"
HEADER_KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
MAX_NAME, MAX_DESCRIPTION, MAX_COMPATIBILITY, MAX_BODY_LINES, MAX_WORDS = 64, 1024, 500, 500, 3800  # 3800 words: about 5000 tokens
_RESERVED = ("ITEMS", "PERIOD", "SEGMENTS")  # the assembler's own constants in every Cfg (docs/contract.md, section 1)
_INT32 = 2**31
# A path in the body that means a file of this skill or of a neighbour; other words with a slash are not ours to judge.
_LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>#]+)[^)]*\)|`((?:\.\./[\w.-]+|cpu|cuda|references|scripts|assets)/[\w./-]*\w\.\w+)`")


class SkillError(KernelbraidError):
    """A skill folder does not say what it must."""


def _knob_name(name: str) -> str:
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        raise ValueError("a knob becomes a constant of C: name it in capitals, like LEVELS or BLOCK")
    if name in _RESERVED or name.startswith("WHOLE_"):
        raise ValueError(f"{', '.join(_RESERVED)} and WHOLE_... are the assembler's constants: take another name")
    return name


class Knob(Frozen):
    """One compile-time constant that the tuner may set: `values` are all that may be tried, in the author's order."""

    default: StrictInt
    values: tuple[StrictInt, ...] = Field(min_length=1)
    about: StrictStr = ""

    @model_validator(mode="after")
    def _check(self) -> Knob:
        if self.default not in self.values:
            raise ValueError(f"default {self.default} is not one of values {list(self.values)}")
        if len(set(self.values)) != len(self.values):
            raise ValueError(f"values {list(self.values)} name one twice")
        if not all(-_INT32 <= v < _INT32 for v in self.values):
            raise ValueError("values are C ints: 32 bits")
        return self


class Entry(Frozen):
    """One entry of implementations.yaml: what an Implementation is made from. Sources are concatenated in their order."""

    name: StrictStr = Field(pattern=r"^[a-z0-9][a-z0-9./_-]*$")
    kind: StrictStr = Field(pattern=r"^[a-z][a-z0-9_]*$")
    target: Target
    sources: tuple[StrictStr, ...] = Field(min_length=1)
    shardings: tuple[StrictStr, ...] = Field(("*",), min_length=1)
    knobs: dict[Annotated[str, AfterValidator(_knob_name)], Knob] = {}
    numerics: StrictStr = ""
    drops: tuple[StrictStr, ...] = ()
    oracle: StrictBool = False
    plain: StrictBool = False  # the implementation a campaign starts from


class Manifest(Frozen):
    """implementations.yaml."""

    implementations: tuple[Entry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Manifest:
        twice = [name for name, n in Counter(e.name for e in self.implementations).items() if n > 1]
        if twice:
            raise ValueError(f"two implementations are named {twice}: rename one")
        return self


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error instead of silently the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, n in seen.items():
            if n > 1 and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' stands there {n} times", node.start_mark)
        return super().construct_mapping(node, deep)


def read_text(path: Path) -> str:
    """A text file of a skill, line ends made \\n. Raises SkillError if it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SkillError(f"{path} is not UTF-8 text: save it as UTF-8") from error
    except OSError as error:
        raise SkillError(f"{path} cannot be read: {error.strerror}") from error


def read_manifest(path: Path) -> Manifest:
    """Read and check implementations.yaml. Raises SkillError with the file, the place and what is wrong there."""
    try:
        data = yaml.load(read_text(path), _UniqueKeys)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise SkillError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise SkillError(f"{path} must be a mapping with the one key 'implementations' (docs/skills.md)")
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        lines = [f"{_place(data, e['loc'])}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
        raise SkillError(f"{path}: {'; '.join(lines)}. docs/skills.md lists the fields") from error


def _place(data: dict[str, Any], loc: tuple[int | str, ...]) -> str:
    """A pydantic location, with an entry called by its name where it has one."""
    if len(loc) > 1 and loc[0] == "implementations" and isinstance(loc[1], int):
        entry = data["implementations"][loc[1]]
        name = entry.get("name") if isinstance(entry, dict) else None
        loc = (f"'{name}'" if isinstance(name, str) else f"entry {loc[1] + 1}", *loc[2:])
    return ".".join(str(part) for part in loc) or "the file"


def user_skills() -> Path:
    """The user's own folder of skills; it need not exist."""
    return platformdirs.user_data_path("kernelbraid") / "skills"


def find_source(source: str, folder: Path, root: Path) -> Path:
    """The file that `source` names in a manifest of `folder`: in the folder, in a neighbour of the same root (`../other/...`), or in
    a built-in skill of that name. Raises SkillError if it is not there or lies elsewhere, through links too."""
    manifest = folder / MANIFEST
    base = folder.resolve()
    own = base if root.resolve() == base else root.resolve()  # one skill given by itself has no neighbours but the built-in ones
    local = Path(os.path.normpath(base / source))
    places = [local]
    if not local.is_relative_to(base) and local.is_relative_to(base.parent):
        builtin = SKILLS / local.relative_to(base.parent)
        places = [builtin] if own == base else [local, builtin]
    if Path(source).is_absolute() or not local.is_relative_to(base.parent):
        raise SkillError(f"{manifest}: source '{source}' lies outside the skills folder; copy it into the skill")
    for place in places:
        real = place.resolve()
        if real.is_file():
            if not real.is_relative_to(own) and not real.is_relative_to(SKILLS):
                raise SkillError(f"{manifest}: source '{source}' lies outside the skills folder (at {real}); copy it into the skill")
            return real
    raise SkillError(f"{manifest}: no source '{source}'; paths are relative to the skill's folder")


def is_name(name: object) -> bool:
    """Whether the open format allows a skill of this name."""
    return isinstance(name, str) and len(name) <= MAX_NAME and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) is not None


def split_body(text: str) -> tuple[str | None, str]:
    """(the YAML between the two --- lines or None, the Markdown after it) of a SKILL.md."""
    found = re.match(r"---[ \t]*\n(.*?)^---[ \t]*$\n?(.*)\Z", text, re.S | re.M)
    return (found.group(1), found.group(2)) if found else (None, text)


def read_header(path: Path) -> dict[str, Any]:
    """The header of a SKILL.md; empty if there is none that can be read (`lint` says why)."""
    try:
        header = yaml.load(split_body(read_text(path))[0] or "", _UniqueKeys)  # noqa: S506 (a SafeLoader)
    except (SkillError, yaml.YAMLError):
        return {}
    return header if isinstance(header, dict) else {}


def header_faults(folder: Path) -> list[str]:
    """What the open format does not allow in the header of folder/SKILL.md."""
    path = folder / BODY
    if not path.is_file():
        return [f"no {BODY}: a skill is a folder with one (docs/skills.md)"]
    text = split_body(read_text(path))[0]
    if text is None:
        return [f"{BODY} does not begin with a header between two lines of ---"]
    try:
        header = yaml.load(text, _UniqueKeys)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        return [f"the header of {BODY} is not YAML (quote values that hold a colon): {' '.join(str(error).split())}"]
    if not isinstance(header, dict):
        return [f"the header of {BODY} must be a mapping with name and description"]
    faults = [f"header: unknown key '{key}'; put keys of your own under metadata" for key in header if key not in HEADER_KEYS]
    name, description = header.get("name"), header.get("description")
    if not is_name(name):
        faults.append(f"header: name {name!r} must be 1 to {MAX_NAME} characters of a-z, 0-9 and single inner hyphens")
    elif name != folder.resolve().name:
        faults.append(f"header: name '{name}' is not the folder's name '{folder.resolve().name}': make them equal")
    if not isinstance(description, str) or not description.strip():
        faults.append("header: description is missing: say what the skill does and when to use it")
    elif len(description) > MAX_DESCRIPTION:
        faults.append(f"header: description has {len(description)} characters, at most {MAX_DESCRIPTION} are allowed")
    for key in ("license", "compatibility", "allowed-tools"):
        if key in header and (not isinstance(header[key], str) or not header[key].strip()):
            faults.append(f"header: {key} must be a line of text, or left out")
    if len(str(header.get("compatibility", ""))) > MAX_COMPATIBILITY:
        faults.append(f"header: compatibility may have {MAX_COMPATIBILITY} characters")
    metadata = header.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for pair in metadata.items() for x in pair):
        faults.append("header: metadata must map text to text (put numbers in quotes)")
    return faults


def body_faults(folder: Path, roots: tuple[Path, ...]) -> list[str]:
    """What is wrong with the body of folder/SKILL.md: too long, or files named in it that are not there or lie too deep.
    roots: where a neighbour (`../other-skill/...`) may be found."""
    if not (folder / BODY).is_file():
        return []
    body = split_body(read_text(folder / BODY))[1]
    lines = body.count("\n") + 1
    faults = (
        [] if lines < MAX_BODY_LINES else [f"{BODY} has {lines} lines, fewer than {MAX_BODY_LINES} are allowed: move parts to references/"]
    )
    for target in dict.fromkeys(a or b for a, b in _LINK.findall(body)):
        if re.match(r"[a-zA-Z][\w+.-]*:", target):  # an address
            continue
        inner = target.removeprefix("../")
        if target.startswith("/") or ".." in Path(inner).parts:
            faults.append(f"{BODY} names '{target}', outside the skill")
        elif not any((place / inner).exists() for place in (roots if inner != target else (folder,))):
            faults.append(f"{BODY} names '{target}', which is not there")
        elif len(Path(inner).parts) > (3 if inner != target else 2):
            faults.append(f"{BODY} names '{target}': files that a skill refers to lie at most one folder deep")
    return faults


def hints(folder: Path) -> list[str]:
    """What would make a skill easier to choose or to read; never a reason to refuse it."""
    path = folder / BODY
    if not path.is_file():
        return []
    found = []
    if not re.search(r"\buse\s+(this\s+|it\s+)?(when|for|if|to)\b|\bwhen\b", str(read_header(path).get("description", "")), re.I):
        found.append("description does not say when to use the skill: add a sentence that begins with 'Use when'")
    words = len(split_body(read_text(path))[1].split())
    if words > MAX_WORDS:
        found.append(f"{BODY} has {words} words, about {words * 4 // 3} tokens; 5000 are advised: move parts to references/")
    return found
