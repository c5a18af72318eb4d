"""Implementations and candidates: what can be judged. Identity is content; names and authors stand outside it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field, model_validator

from sandbox.errors import RecordError
from sandbox.plan import Plan
from sandbox.records import Frozen, content_hash

Target = Literal["cpu", "cuda"]
Knob = int
MAX_PATH, MAX_NAME = 200, 100  # characters of a file's path in a solution, and of each part


class Implementation(Frozen):
    """Source of one stage kind for one target, with its knobs set."""

    name: str
    kind: str
    target: Target
    source: str
    knobs: dict[str, Knob] = {}
    shardings: tuple[str, ...] = ("*",)
    numerics: str = ""
    drops: tuple[str, ...] = ()  # rounding points of the definition that it skips; a plan that uses it must list them
    oracle: bool = False
    author: str = ""

    @property
    def id(self) -> str:
        """Hash of everything that changes behaviour."""
        return content_hash({"kind": self.kind, "target": self.target, "source": self.source, "knobs": self.knobs})

    def accepts(self, sharding: str) -> bool:
        """Whether it can run under this sharding."""
        return "*" in self.shardings or sharding in self.shardings

    def with_knobs(self, **knobs: Knob) -> Implementation:
        """The same source with other knob values; an unknown knob is an error."""
        unknown = set(knobs) - set(self.knobs)
        if unknown:
            raise RecordError(f"implementation '{self.name}' has no knob {sorted(unknown)}; it has {sorted(self.knobs)}")
        return self.model_copy(update={"knobs": {**self.knobs, **knobs}})


class Candidate(Frozen):
    """Anything the judge can evaluate: one stage alone, or a whole step.

    `source` is one translation unit with the step ABI (`language` cpp), or a solution.py under the problem's public contract
    (`language` python), with the modules beside it in `files`. `implementations` (kind or node -> id) and `plan` say what a
    megakernel was assembled from; `flags` are part of the identity because they change behaviour."""

    role: Literal["stage", "solution"]
    target: Target
    source: str = Field(min_length=1)
    language: Literal["cpp", "python"] = "cpp"
    files: dict[str, str] = {}  # of a python solution: other modules and sources by relative path
    flags: tuple[str, ...] = ()
    threads: int = Field(default=0, ge=0)  # 0: the judge's default
    node: str = ""  # of a stage candidate: which stage of the problem's graph it claims to compute
    plan: Plan | None = None
    implementations: dict[str, str] = {}
    name: str = ""
    author: str = ""

    @model_validator(mode="after")
    def _check(self) -> Candidate:
        if (self.role == "stage") != bool(self.node):
            raise RecordError("a stage candidate names its node, a solution names none")
        if self.language == "python" and self.role == "stage":
            raise RecordError("a stage candidate is written in C++; in Python only whole solutions are judged")
        if self.files:
            self._check_files()
        try:
            for text in (self.source, *self.files.values()):
                text.encode()
        except UnicodeEncodeError as error:
            raise RecordError(f"the source of '{self.name}' is no text that can be written as UTF-8: {error.reason}") from error
        return self

    def _check_files(self) -> None:
        """The files beside a solution can be written as they are named: relative, portable, none in the place of another's folder."""
        taken = {PurePosixPath("solution.py")}
        for name in sorted(self.files):
            path = PurePosixPath(name)
            sound = path.parts and not path.is_absolute() and ".." not in path.parts and str(path) == name and "\0" not in name
            if not sound or not name.isascii() or len(name) > MAX_PATH or max(map(len, path.parts)) > MAX_NAME:
                raise RecordError(
                    f"file '{name[:100]}' of a solution must be a plain relative path below it, of at most {MAX_PATH} characters"
                )
            if path in taken or any(parent in taken for parent in path.parents) or any(path in other.parents for other in taken):
                raise RecordError(f"file '{name}' of a solution stands in the place of another file or of its folder")
            taken.add(path)

    @property
    def id(self) -> str:
        """Hash of everything that changes behaviour; name, author and provenance stay outside."""
        content = {"role": self.role, "target": self.target, "source": self.source, "flags": list(self.flags),
                   "threads": self.threads, "node": self.node}  # fmt: skip
        if self.language != "cpp":
            content |= {"language": self.language, "files": self.files}
        return content_hash(content)
