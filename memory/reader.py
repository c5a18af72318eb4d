"""Reading a memory folder without owning it: no lock, no write, no index."""

from __future__ import annotations

import datetime
import functools
import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from memory.errors import StoreError, UnknownTrick
from memory.ledger import TRICKS_FILE, Ledger
from memory.owner import owner_pid
from memory.trick import VERSION, Failure, Hardware, StandingChange, Trick, TrickStanding, Use

if TYPE_CHECKING:  # numpy comes with the first search only
    from memory.retrieval import Found, Vectors


class Where(TypedDict, total=False):
    """Filters; all that are given must hold. `standing` may name several."""

    problem: str
    size: str
    target: str
    kind: str
    stage_kind: str
    slot: str
    specialist: str
    hardware: Hardware
    standing: TrickStanding | Collection[TrickStanding]


@dataclass(frozen=True)
class Credit:
    """What came of the proposals that used a trick."""

    helped: int = 0
    no_difference: int = 0
    failed: int = 0


class MemoryReader:
    """What a memory folder holds now; lines that the owner adds meanwhile are seen at the next call.

    A folder that does not exist reads as empty. Methods raise RecordError naming a line that is no record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ledger = Ledger(folder / TRICKS_FILE)

    @functools.cached_property
    def _vectors(self) -> Vectors:
        from memory.retrieval import Vectors

        return Vectors()

    def _now(self) -> Ledger:
        self._ledger.refresh()
        return self._ledger

    # -- tricks ----------------------------------------------------------------------------------------------------

    def tricks(self, **where: Unpack[Where]) -> list[Trick]:
        """The tricks that pass the filters, oldest first."""
        ledger = self._now()
        return [ledger.tricks[i] for i in self._chosen(ledger, where)]

    def get(self, name: str) -> Trick:
        """The trick whose id begins with `name`. Raises UnknownTrick if there is none or more than one."""
        ledger = self._now()
        hits = [t for i, t in ledger.tricks.items() if name and i.startswith(name)]
        if len(hits) != 1:
            what = f"{len(hits)} tricks have ids that begin with '{name}'; give more digits" if hits else f"no trick '{name}'"
            raise UnknownTrick(f"{what} (the memory in {self.folder} holds {len(ledger.tricks)}; list shows them)")
        return hits[0]

    def search(self, text: str, n: int = 5, where: Where | None = None) -> list[Found]:
        """The `n` tricks nearest to a text in meaning and words, best first, among those that pass the filters."""
        ledger = self._now()
        chosen = self._chosen(ledger, where or {})
        if not chosen or n < 1:
            return []
        from memory.retrieval import rank

        return rank(text, ledger.tricks, chosen, self._nearest(text, chosen, n), self._vectors, n)

    def _nearest(self, text: str, chosen: Mapping[str, TrickStanding], n: int) -> Collection[str]:
        """At least the `n` of `chosen` that are nearest in cosine. Without an index: all."""
        return chosen

    def _chosen(self, ledger: Ledger, where: Where) -> dict[str, TrickStanding]:
        standings = ledger.newest_standings()
        return {i: standings[i] for i, t in ledger.tricks.items() if _passes(t, standings[i], where)}

    # -- what became of them -----------------------------------------------------------------------------------------

    def standing(self, trick: str) -> TrickStanding:
        """Today's standing of a trick, by its whole id."""
        return self._now().newest_standings().get(trick, "verified")

    def standing_changes(self, trick: str) -> list[StandingChange]:
        """Each time that a trick was judged anew, oldest first."""
        return [s for s in self._now().standings if s.trick == trick]

    def uses(self, trick: str) -> list[Use]:
        """The proposals that used a trick, oldest first; a proposal counts once, with its last word."""
        last = {(u.campaign, u.proposal): u for u in self._now().uses if u.trick == trick}
        return list(last.values())

    def credit(self, trick: str) -> Credit:
        """How often using it helped, made no difference, failed."""
        outcomes = Counter(u.outcome for u in self.uses(trick))
        return Credit(outcomes["helped"], outcomes["no_difference"], outcomes["failed"])

    # -- failures ------------------------------------------------------------------------------------------------------

    def failures(
        self,
        hardware: Hardware,
        shape: Mapping[str, int | str],
        toolchain: str,
        problem: str | None = None,
        today: datetime.date | None = None,
    ) -> list[Failure]:
        """What failed on exactly this hardware, shape and toolchain and has not expired, oldest first."""
        day = today or datetime.datetime.now(datetime.UTC).date()
        here = [f for f in self._now().failures.values() if f.binds(hardware, dict(shape), toolchain, day)]
        return [f for f in here if problem is None or f.problem == problem]

    # -- the whole -------------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counts for people and for the doctor; JSON values only."""
        ledger = self._now()
        today = datetime.datetime.now(datetime.UTC).date()
        live = [f for f in ledger.failures.values() if today < datetime.date.fromisoformat(f.expires)]
        file = ledger.path
        return {
            "folder": str(self.folder),
            "records": ledger.count,
            "bytes": file.stat().st_size if file.exists() else 0,
            "tricks": len(ledger.tricks),
            "standings": dict(Counter(ledger.newest_standings().values())),
            "kinds": dict(Counter(t.kind for t in ledger.tricks.values())),
            "failures": {"live": len(live), "expired": len(ledger.failures) - len(live)},
            "failure_statuses": dict(Counter(f.status for f in live)),
            "uses": dict(Counter(u.outcome for u in ledger.uses)),
            "owner": owner_pid(self.folder),
        }

    def export(self, path: Path) -> Path:
        """Write every record, whole, as one JSON object to `path`, whole or not at all; an older file there is replaced."""
        ledger = self._now()
        if path.resolve().parent == self.folder.resolve():
            raise StoreError(f"{path} lies in the memory itself; export to another folder")
        body = {
            "format": "kernelbraid-memory",
            "version": VERSION,
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "tricks": [described(t, ledger.standing(i)) for i, t in ledger.tricks.items()],
            "failures": [{"id": i, **f.model_dump(mode="json")} for i, f in ledger.failures.items()],
            "uses": [u.model_dump(mode="json") for u in ledger.uses],
            "standings": [s.model_dump(mode="json") for s in ledger.standings],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")
        partial.replace(path)
        return path


def described(trick: Trick, standing: TrickStanding) -> dict[str, Any]:
    """A trick as JSON with its id and today's standing."""
    return {"id": trick.id, "standing": standing, **trick.model_dump(mode="json")}


def _passes(trick: Trick, standing: TrickStanding, where: Where) -> bool:
    known = set(Where.__annotations__)
    if unknown := set(where) - known:
        raise StoreError(f"tricks cannot be filtered by {sorted(unknown)}; filters are {sorted(known)}")
    equal = {"problem": trick.problem, "size": trick.size, "target": trick.target, "kind": trick.kind,
             "specialist": trick.specialist, "hardware": trick.hardware}  # fmt: skip
    if any(name in where and where[name] != value for name, value in equal.items()):  # type: ignore[literal-required]
        return False
    if "stage_kind" in where and where["stage_kind"] not in trick.stage_kinds:
        return False
    if "slot" in where and where["slot"] not in trick.slots:
        return False
    asked = where.get("standing")
    return asked is None or standing in ((asked,) if isinstance(asked, str) else asked)
