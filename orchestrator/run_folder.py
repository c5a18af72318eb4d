"""The run folder: append-only files that hold all a campaign did, enough to go on with it after any death.

What has been judged is in `evaluations.jsonl` and nowhere else. A campaign that goes on runs its loop from the beginning again;
what the folder holds is answered from it (`recorded`), events that are in it are not written twice, and the clock shows what it
showed then, so that the loop takes the way it took and arrives where it was.
"""

from __future__ import annotations

import collections
import datetime
import json
import secrets
import time
from pathlib import Path
from typing import Any

import structlog
from filelock import FileLock, Timeout

from sandbox.errors import KernelbraidError
from sandbox.evaluation import Evaluation, append, read_chain
from sandbox.records import canonical_json

log = structlog.get_logger()


class RunFolderError(KernelbraidError):
    """A run folder cannot be used."""


class RunFolder:
    """`events.jsonl`, `evaluations.jsonl` (hash-chained), `kernels/`, `settings.json`, `summary.json` (only when finished)."""

    def __init__(self, path: Path) -> None:
        """Opened to write: one process at a time. Raises RunFolderError if another one has it."""
        self.path = path.resolve()
        (self.path / "kernels").mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / "owner.lock", blocking=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise RunFolderError(f"another process is working in {self.path}; wait for it, or begin another run with --new") from None
        self._known: collections.Counter[str] = collections.Counter()
        self._told: list[dict[str, Any]] = []
        self._recorded: dict[str, tuple[Evaluation, float]] = {}  # key -> record, elapsed at its end
        self._base, self._virtual, self._since = 0.0, 0.0, time.monotonic()
        self._recover()

    @classmethod
    def new(cls, root: Path, name: str) -> RunFolder:
        """A fresh folder under `root`, named by time so that names sort."""
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
        return cls(root / f"{stamp}-{name}-{secrets.token_hex(2)}")

    @staticmethod
    def unfinished(root: Path, name: str) -> Path | None:
        """The newest folder of that name that was begun and not finished."""
        found = [p for p in sorted(root.glob(f"*-{name}-????")) if (p / "settings.json").exists()]
        return found[-1] if found and not any((found[-1] / end).exists() for end in ("summary.json", "failed.json")) else None

    def close(self) -> None:
        """Let another process have it."""
        self._lock.release()

    # -- what was there --------------------------------------------------------------------------------------------

    @property
    def evaluations(self) -> Path:
        """The chained record of every judgement."""
        return self.path / "evaluations.jsonl"

    @property
    def events(self) -> Path:
        """What happened, one JSON object a line."""
        return self.path / "events.jsonl"

    def _recover(self) -> None:
        """Cut lines that a dying writer tore, and take up what is whole. An evaluation that was begun and has no record is
        abandoned: it will be asked for again under the same key."""
        for path in (self.events, self.evaluations):
            _cut_torn_line(path)
        begun, ended = {}, {}
        self._told = read_events(self.path)
        for event in self._told:
            self._base = max(self._base, float(event.get("elapsed", 0.0)))
            if event["event"] == "evaluation.started":
                begun[event["key"]] = event
            elif event["event"] in ("evaluation.completed", "evaluation.recovered"):
                ended[event["key"]] = float(event["elapsed"])
            elif event["event"] == "evaluation.abandoned" and event["key"] in begun:
                self._known[_content(begun.pop(event["key"]))] -= 1  # its next beginning is another one
            self._known[_content(event)] += 1
        records = read_chain(self.evaluations) if self.evaluations.exists() else []
        for record in records:
            if record.key in self._recorded:
                raise RunFolderError(f"{self.evaluations} holds two records of one key ({record.key[:12]}): it was not written by us")
            self._recorded[record.key] = (record, ended.get(record.key, self._base))
        for key in begun:
            if key in self._recorded and key not in ended:
                self._append({"event": "evaluation.recovered", "key": key, "evaluation": self._recorded[key][0].id})
            elif key not in self._recorded:
                self._append({"event": "evaluation.abandoned", "key": key})
                self._known[_content(begun[key])] -= 1  # it will begin again, and say so
        self._unread = set(self._recorded)

    def recorded(self, key: str) -> Evaluation | None:
        """The evaluation of that key, if it was completed; the clock then shows what it showed at its end."""
        if key not in self._recorded:
            return None
        record, elapsed = self._recorded[key]
        self._unread.discard(key)
        self._virtual = max(self._virtual, elapsed)
        if not self._unread:
            self._since = time.monotonic()
        return record

    def told(self, event: str, **fields: Any) -> dict[str, Any] | None:
        """What an earlier life wrote of that kind with these fields."""
        return next((e for e in self._told if e["event"] == event and all(e.get(k) == v for k, v in fields.items())), None)

    @property
    def replaying(self) -> bool:
        """Whether the folder holds evaluations that this process has not asked for yet."""
        return bool(self._unread)

    @property
    def count(self) -> int:
        """Completed evaluations."""
        return len(self._recorded)

    def elapsed(self) -> float:
        """Seconds that the campaign has worked, over all its lives. In a replay: what it was then."""
        return self._virtual if self.replaying else self._base + time.monotonic() - self._since

    # -- writing ---------------------------------------------------------------------------------------------------

    def event(self, event: str, /, **fields: Any) -> dict[str, Any] | None:
        """Append one event (noun.verb) with its fields, flushed; None if an earlier life of the campaign wrote it."""
        entry = {"event": event, **json.loads(canonical_json(fields))}
        content = _content(entry)
        if self._known[content] > 0:
            self._known[content] -= 1
            return None
        return self._append(entry)

    def _append(self, entry: dict[str, Any]) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        full = {"at": now, "elapsed": round(self.elapsed() if hasattr(self, "_unread") else self._base, 3), **entry}
        with self.events.open("a") as f:
            f.write(canonical_json(full) + "\n")
            f.flush()
        return full

    def note(self, event: str, /, **fields: Any) -> dict[str, Any]:
        """Append an event of this life: never mistaken for what an earlier one said."""
        return self._append({"event": event, **json.loads(canonical_json(fields))})

    def record(self, evaluation: Evaluation) -> Evaluation:
        """Append an evaluation to the chain. Raises RunFolderError for a key that has one."""
        if evaluation.key in self._recorded:
            raise RunFolderError(f"key {evaluation.key[:12]} was judged before: ask `recorded` first")
        if self.replaying:  # new work: from here on nothing is a repetition, whatever the earlier life did after this
            self._unread.clear()
            self._since = time.monotonic()
        # Evaluations keep their one completion whatever way the loop takes; other events of the earlier life are of another story.
        self._known = collections.Counter({c: n for c, n in self._known.items() if c.startswith("evaluation.")})
        kept = append(self.evaluations, evaluation)
        self._recorded[kept.key] = (kept, self.elapsed())
        return kept

    def write(self, name: str, text: str) -> Path:
        """Write a file of the run, whole or not at all."""
        path = self.path / name
        partial = path.with_suffix(path.suffix + ".partial")
        partial.write_text(text)
        partial.rename(path)
        return path

    def write_json(self, name: str, value: Any) -> Path:
        """Write a JSON file of the run, indented for people."""
        return self.write(name, json.dumps(value, indent=2, sort_keys=True) + "\n")

    def read_json(self, name: str) -> Any:
        """A JSON file of the run. Raises RunFolderError if it is not there."""
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path / name} cannot be read: {error}") from error


def read_events(folder: Path) -> list[dict[str, Any]]:
    """All whole events of a folder, oldest first; a torn last line is left out. Reads only."""
    path = folder / "events.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def _content(event: dict[str, Any]) -> str:
    """What makes two events the same: of an evaluation its key, of others all but the time."""
    if event["event"].startswith("evaluation."):
        return f"{event['event']} {event['key']}"
    return canonical_json({k: v for k, v in event.items() if k not in ("at", "elapsed")})


def _cut_torn_line(path: Path) -> None:
    """Move a last line without its end aside: its writer died in it, so nobody was told that it was written."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        whole = data.rfind(b"\n") + 1
        aside = path.with_suffix(f".torn-{int(time.time())}{path.suffix}")
        aside.write_bytes(data[whole:])
        with path.open("r+b") as f:
            f.truncate(whole)
        log.warning("run_folder.torn_line", file=str(path), kept_in=str(aside))
