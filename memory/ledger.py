"""The truth of the memory: one append-only JSONL file, read as far as it is whole, folded into what is known today."""

from __future__ import annotations

import datetime
import json
import os
import secrets
from pathlib import Path

import structlog
from pydantic import TypeAdapter, ValidationError

from memory.migrations import migrate
from memory.trick import Failure, Record, StandingChange, Trick, TrickStanding, Use
from sandbox.errors import RecordError
from sandbox.records import canonical_json

TRICKS_FILE = "tricks.jsonl"

log = structlog.get_logger()
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


def stamp() -> str:
    """Part of a file name: the time, and a few digits that keep two of one second apart."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)


class Ledger:
    """Records of a file, folded: `tricks` by id (first line wins), `failures` by id (newest wins), uses, standings.

    A last line without its end is not there yet (a writer is at work or died) and is left for the next `refresh`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.tricks: dict[str, Trick] = {}
        self.failures: dict[str, Failure] = {}
        self.uses: list[Use] = []
        self.standings: list[StandingChange] = []
        self.count = 0  # whole lines read
        self._offset = 0
        self._inode = -1

    def refresh(self) -> None:
        """Read the lines that were added since the last time. Raises RecordError naming a line that is no record."""
        try:
            with self.path.open("rb") as f:
                facts = os.fstat(f.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._offset:
                    self._forget()
                    self._inode = facts.st_ino
                f.seek(self._offset)
                data = f.read()
        except FileNotFoundError:
            self._forget()
            return
        whole = data[: data.rfind(b"\n") + 1]  # only "\n" ends a line: claims and sources may hold U+2028 and its like
        for line in whole.split(b"\n")[:-1]:
            self._fold(self._parse(line))
            self._offset += len(line) + 1

    def _parse(self, line: bytes) -> Record:
        where = f"{self.path}:{self.count + 1}"
        try:
            record = _RECORD.validate_python(migrate(_object(line)))
        except (ValueError, RecordError) as error:
            what = error.errors()[0] if isinstance(error, ValidationError) else error
            raise RecordError(f"{where}: this is no record of the memory: {what}; move that line out of the file") from error
        if isinstance(record, Trick) and record.trust != "verified":
            raise RecordError(f"{where}: a trick without the store's `verified`; move that line out of the file")
        return record

    def _fold(self, record: Record) -> None:
        self.count += 1
        if isinstance(record, Trick):
            self.tricks.setdefault(record.id, record)
        elif isinstance(record, Failure):
            self.failures.pop(record.id, None)  # so that a refreshed failure is the newest
            self.failures[record.id] = record
        elif isinstance(record, Use):
            self.uses.append(record)
        else:
            self.standings.append(record)

    def standing(self, trick: str) -> TrickStanding:
        """What the newest word on a trick is; `verified` if it was admitted and never judged anew."""
        return next((s.standing for s in reversed(self.standings) if s.trick == trick), "verified")

    def newest_standings(self) -> dict[str, TrickStanding]:
        """Standing of every trick, by id, in the order of the tricks."""
        newest = {s.trick: s.standing for s in self.standings}
        return {i: newest.get(i, "verified") for i in self.tricks}

    def append(self, record: Record) -> None:
        """Write one line and bring it to the disk. Only the holder of the owner's lock may call it."""
        line = (canonical_json(record) + "\n").encode()
        new = not self.path.exists()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        before = os.fstat(handle).st_size
        try:
            while line:
                line = line[os.write(handle, line) :]
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, before)  # a full disk must not leave half a line for the next one to grow on
            raise
        finally:
            os.close(handle)
        if new:
            sync_folder(self.path.parent)
        self.refresh()

    def cut_torn_line(self) -> Path | None:
        """Move what a writer that died left of its last line into a file of its own; returns that file if there was any.

        Only the holder of the owner's lock may call it."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        keep = data.rfind(b"\n") + 1
        if keep == len(data):
            return None
        aside = self.path.with_name(f"torn-{stamp()}.jsonl")
        aside.write_bytes(data[keep:])
        with self.path.open("r+b") as f:
            f.truncate(keep)
            os.fsync(f.fileno())
        log.warning("memory.torn_line_cut", file=str(self.path), kept_in=str(aside), bytes=len(data) - keep)
        return aside


def _object(line: bytes) -> dict[str, object]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk: a new file's name is not there before that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
