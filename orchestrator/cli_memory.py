"""The verb `memory`: what was proven, read without owning it; only `rebuild` writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer
from rich.console import Console

from memory.reader import Credit, MemoryReader, Where, described
from memory.trick import Trick, TrickStanding
from orchestrator.cli_errors import plain_errors

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What was proven: tricks with the evaluations that prove them.\n\n"
    "Examples:\n\n  kernelbraid memory list\n\n  kernelbraid memory search 'fewer barriers'",
)
FOLDERS = "choose another folder with --folder or --runs"

Folder = Annotated[Path | None, typer.Option(help="The memory's folder. Default: the one of --runs.")]
Runs = Annotated[
    Path | None, typer.Option(help="Folder of the run folders; the memory lies in its `memory`. Default: the user's data folder.")
]
Json = Annotated[bool, typer.Option("--json", help="The last line of stdout is JSON.")]
Problem = Annotated[str | None, typer.Option(help="Only tricks of this problem.")]
Slot = Annotated[str | None, typer.Option(help="Only tricks that change this slot (`qkvg`, `o_proj`, `up`).")]
Standing = Annotated[TrickStanding | None, typer.Option(help="Only tricks of this standing.")]


@app.command("list")
def list_tricks(
    folder: Folder = None, runs: Runs = None, problem: Problem = None, slot: Slot = None, standing: Standing = None, as_json: Json = False
) -> None:
    """One line per trick, oldest first: id, ratio with its interval, standing, where it was proven, claim."""
    with plain_errors(hint=FOLDERS):
        reader = _reader(folder, runs)
        tricks = reader.tricks(**_where(problem, slot, standing))
        for trick in tricks:
            _out(_line(trick, reader.standing(trick.id)))
        if not tricks:
            _say_empty(reader)
        if as_json:
            _json([_brief(t, reader) for t in tricks])


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="A trick's id, or the first digits of it.")],
    folder: Folder = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Everything about one trick: proof, change, sources, what became of it, how to replay it."""
    with plain_errors(hint=FOLDERS):
        reader = _reader(folder, runs)
        trick = reader.get(name)
        _out("\n".join(_page(trick, reader)))
        if as_json:
            more = {"standing_changes": [s.model_dump(mode="json") for s in reader.standing_changes(trick.id)],
                    "uses": [u.model_dump(mode="json") for u in reader.uses(trick.id)]}  # fmt: skip
            _json(described(trick, reader.standing(trick.id)) | more)


@app.command()
def search(
    text: Annotated[str, typer.Argument(help="What to look for, in words.")],
    folder: Folder = None,
    runs: Runs = None,
    problem: Problem = None,
    slot: Slot = None,
    standing: Standing = None,
    n: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 5,
    as_json: Json = False,
) -> None:
    """The tricks nearest to a text, best first: an offline embedding fused with BM25 over words."""
    with plain_errors(hint=FOLDERS):
        reader = _reader(folder, runs)
        found = reader.search(text, n, _where(problem, slot, standing))
        for f in found:
            _out(f"{f.score:.3f}  {_line(f.trick, f.standing)}")
        if not found:
            _say_empty(reader)
        if as_json:
            _json([_brief(f.trick, reader) | {"score": f.score, "cosine": f.cosine, "words": f.words} for f in found])


@app.command()
def stats(folder: Folder = None, runs: Runs = None, as_json: Json = False) -> None:
    """Counts: tricks by standing and kind, failures, uses, the owner if there is one."""
    with plain_errors(hint=FOLDERS):
        facts = _reader(folder, runs).stats()
        for name, value in facts.items():
            if isinstance(value, dict):
                value = ", ".join(f"{k} {v}" for k, v in value.items())
            _out(f"{name:18} {'-' if value in (None, '') else value}")
        if as_json:
            _json(facts)


@app.command()
def rebuild(folder: Folder = None, runs: Runs = None, as_json: Json = False) -> None:
    """Make the search index anew from the records. Needs the memory for itself: refused while a campaign owns it."""
    from memory.store import MemoryStore

    with plain_errors(hint=FOLDERS):
        with MemoryStore(_folder(folder, runs)) as store:
            count = store.rebuild()
            where = store.folder
        _err(f"the index in {where} holds {count} trick{'' if count == 1 else 's'}")
        if as_json:
            _json({"folder": str(where), "index": count})


@app.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File to write; an older one there is replaced.")],
    folder: Folder = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Write every record, whole, as one JSON file."""
    with plain_errors(hint=FOLDERS):
        reader = _reader(folder, runs)
        reader.export(path)
        count = reader.stats()["records"]
        _err(f"{count} record{'' if count == 1 else 's'} written to {path}")
        if as_json:
            _json({"path": str(path), "records": count})


# -- what is printed ---------------------------------------------------------------------------------------------------


def _line(trick: Trick, standing: str) -> str:
    r = trick.ratio
    where = f"{trick.problem}/{trick.size} {trick.target}"
    machine = f" on {trick.hardware}" if trick.hardware else ""
    return f"{trick.id[:12]}  {r.median:.3f}x ({r.low:.3f} to {r.high:.3f})  {standing:8}  {where}{machine}: {_one_line(trick.claim)}"


def _page(trick: Trick, reader: MemoryReader) -> list[str]:
    r, credit = trick.ratio, reader.credit(trick.id)
    rows = {
        "trick": trick.id,
        "claim": trick.claim,
        "standing": reader.standing(trick.id),
        "ratio": f"{r.median:.4f}x, 95 % {r.low:.4f} to {r.high:.4f}, {r.pairs} pairs from {r.processes} process pairs"
        + (f" ({r.of})" if r.of else ""),
        "kind": trick.kind,
        "proven on": f"{trick.problem}/{trick.size} {trick.target}, {trick.hardware or 'hardware not recorded'}",
        "shape": ", ".join(f"{k} {v}" for k, v in trick.shape.items()),
        "toolchain": trick.toolchain,
        "environment": trick.environment,
        "stage kinds": " ".join(trick.stage_kinds),
        "slots": " ".join(trick.slots),
        "change": str(trick.change or ""),
        "applies": trick.applies,
        "not when": trick.not_when,
        "skills": " ".join(trick.skills),
        "found by": " ".join(x for x in (trick.specialist, trick.proposer, trick.author) if x),
        "shown": " ".join(i[:12] for i in trick.shown),
        "used": " ".join(i[:12] for i in trick.used),
        "candidate": trick.candidate,
        "parent": trick.parent,
        "evaluations": " ".join(trick.evaluations),
        "at": trick.at,
        "credit": _credit(credit),
    }
    lines = [f"{name:12} {_one_line(value)}" for name, value in rows.items() if value]
    for s in reader.standing_changes(trick.id):
        lines.append(f"{s.at}  became {s.standing} by evaluation {s.evaluation}{': ' + _one_line(s.why) if s.why else ''}")
    for u in reader.uses(trick.id):
        lines.append(f"{u.at}  used by proposal {u.proposal} of {_one_line(u.campaign)}: {u.outcome}")
    lines.append(
        f"replay       kernelbraid run --problem {_one_line(trick.problem)} --size {trick.size}: the campaign recalls the trick, makes "
        "the change above on its own incumbent and judges it again"
    )
    for number, (i, source) in enumerate(sorted(trick.sources.items()), 1):
        lines += [f"--- source {number} of {len(trick.sources)}, implementation {i}", _printable(source).rstrip("\n")]
    return lines


def _credit(credit: Credit) -> str:
    if credit == Credit():
        return ""
    return f"helped {credit.helped}, no difference {credit.no_difference}, failed {credit.failed}"


def _brief(trick: Trick, reader: MemoryReader) -> dict[str, Any]:
    body = described(trick, reader.standing(trick.id))
    return {k: v for k, v in body.items() if k != "sources"}  # `show` has them


def _printable(text: str) -> str:
    """Text that may come from a model, without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _one_line(text: str) -> str:
    return " ".join(_printable(text).split())


# -- plumbing ------------------------------------------------------------------------------------------------------------


def _folder(folder: Path | None, runs: Path | None) -> Path:
    return folder or (runs or platformdirs.user_data_path("kernelbraid")) / "memory"


def _reader(folder: Path | None, runs: Path | None) -> MemoryReader:
    return MemoryReader(_folder(folder, runs))


def _where(problem: str | None, slot: str | None, standing: TrickStanding | None) -> Where:
    where: Where = {}
    if problem:
        where["problem"] = problem
    if slot:
        where["slot"] = slot
    if standing:
        where["standing"] = standing
    return where


def _say_empty(reader: MemoryReader) -> None:
    count = reader.stats()["tricks"]
    if count:
        _err(f"none of the {count} tricks in {reader.folder} fits")
    else:
        _err(f"no tricks yet in {reader.folder}; `kernelbraid run` adds what it proves")


def _out(text: str) -> None:
    sys.stdout.write(text + "\n")


def _err(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)


def _json(value: Any) -> None:
    _out(json.dumps(value))
