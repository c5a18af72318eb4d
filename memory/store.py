"""The owner of a memory folder: writes the records, keeps the Chroma index beside them, and never trusts that index.

The truth is `tricks.jsonl`. A record is acknowledged when its line is on the disk; the index follows, and is compared with the
truth at every opening. Only this module imports chromadb. `MemoryReader` is what everybody else uses.
"""

from __future__ import annotations

import importlib
import shutil
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from memory import embedding
from memory.errors import NotProven, UnknownTrick
from memory.ledger import Ledger, stamp
from memory.owner import Ownership
from memory.reader import MemoryReader, Where
from memory.retrieval import digest, searchable
from memory.trick import Failure, Hardware, StandingChange, Trick, TrickStanding, Use, contradiction, margin_of, refusal
from sandbox.evaluation import Evaluation

__all__ = ["MemoryReader", "MemoryStore", "Where"]

INDEX = "index"
COLLECTION = f"tricks-{embedding.NAME}-v{embedding.VERSION}"  # vectors of another model or version never meet these
_BATCH = 5000  # Chroma refuses more than 5461 at once
_NEAREST = 200  # as many neighbours are asked of Chroma, whose search is approximate, at least; they are scored exactly

log = structlog.get_logger()


class MemoryStore(MemoryReader):
    """The one writer of a folder, from building it to `close`; also a context manager.

    Raises MemoryBusy if another process (or another store of this one) owns the folder, RecordError if the truth has a line that
    is no record, UnavailableError if the offline embedding is missing. Methods may be called from several threads."""

    def __init__(self, folder: Path) -> None:
        folder = folder.resolve()  # Chroma knows a folder by the spelling of its path
        super().__init__(folder)
        self._turn = threading.RLock()
        self._ownership = Ownership(folder)
        try:
            self._ledger.cut_torn_line()
            self._ledger.refresh()
            self._index = self._open_index()
        except BaseException:
            self._ownership.release()
            raise
        try:
            self.repaired = self._repair()  # how many entries the index lacked or had too much
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the ownership; a second call does nothing."""
        with self._turn:
            self._index.close()
            self._ownership.release()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def admit(self, trick: Trick, evaluation: Evaluation, incumbent: str) -> str:
        """Take a trick into memory if `evaluation` proves that it beats `incumbent` (a name in the evaluation's ratios).

        Returns "" if it is in memory now, else why not. Ratio, hardware, toolchain and trust are the evaluation's and ours,
        whatever the trick says. A trick that memory holds is not written again; if it was stale or refuted, it is verified again."""
        why = _not_of(trick, evaluation) or refusal(evaluation, incumbent, margin_of(trick.target))
        if why:
            return why
        assert evaluation.times is not None  # refusal saw to it
        facts = {"ratio": evaluation.times.vs[incumbent], "hardware": Hardware.of(evaluation.environment),
                 "toolchain": evaluation.environment.compiler, "trust": "verified"}  # fmt: skip
        proven = trick.model_copy(update=facts)
        with self._turn:
            if proven.id not in self._ledger.tricks:
                self._ledger.append(proven)
                self._index_again([proven.id])
            elif self.standing(proven.id) != "verified":
                self.set_standing(proven.id, "verified", evaluation, incumbent, "proven again")
        return ""

    def fail(self, failure: Failure) -> None:
        """Remember what did not work; the same failure again only brings its date, reason and evaluations up to date."""
        with self._turn:
            before = self._ledger.failures.get(failure.id)
            if before:
                known = dict.fromkeys((*before.evaluations, *failure.evaluations))
                failure = failure.model_copy(update={"evaluations": tuple(known)})
                if failure.model_copy(update={"at": before.at}) == before:
                    return
            self._ledger.append(failure)

    def used(self, use: Use) -> None:
        """Give credit. The same word on the same proposal twice is written once. Raises UnknownTrick."""
        with self._turn:
            self._known(use.trick)
            if not any(u.model_copy(update={"at": use.at}) == use for u in self.uses(use.trick)):
                self._ledger.append(use)

    def set_standing(
        self, trick: str, standing: TrickStanding, evaluation: Evaluation, incumbent: str = "", why: str = ""
    ) -> StandingChange:
        """Change a trick's standing (by its whole id) on the word of an evaluation, in which `incumbent` was its pair.

        Raises NotProven if the evaluation does not support it (`memory.trick.contradiction`), UnknownTrick."""
        with self._turn:
            known = self._known(trick)
            against = _not_recorded(evaluation) or contradiction(standing, evaluation, incumbent, margin_of(known.target))
            if evaluation.problem != known.problem:
                against = f"the evaluation is of problem '{evaluation.problem}', the trick of '{known.problem}'"
            if against:
                raise NotProven(f"trick {trick[:12]} cannot become {standing}: {against}; judge it again")
            change = StandingChange(
                trick=trick, standing=standing, evaluation=evaluation.id, environment=evaluation.environment.id, why=why
            )
            self._ledger.append(change)
            self._index_again([trick])
            return change

    def _known(self, trick: str) -> Trick:
        if trick not in self._ledger.tricks:
            raise UnknownTrick(f"the memory in {self.folder} holds no trick '{trick}'; use the whole id of one that it holds")
        return self._ledger.tricks[trick]

    # -- the index -----------------------------------------------------------------------------------------------------

    def rebuild(self) -> int:
        """Make the index anew from the truth; returns how many tricks it holds."""
        with self._turn:
            self._index.close()
            shutil.rmtree(self.folder / INDEX, ignore_errors=True)
            self._index = _Index(self.folder / INDEX)
            return self._repair()

    def stats(self) -> dict[str, Any]:
        """Counts as of the reader, and what the index holds."""
        return super().stats() | {"index": len(self._index.digests()), "collection": COLLECTION}

    def _open_index(self) -> _Index:
        folder = self.folder / INDEX
        try:
            return _Index(folder)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of Chroma's Rust part is no Exception
            aside = self.folder / f"{INDEX}-broken-{stamp()}"
            if folder.exists():
                folder.rename(aside)
            log.warning("memory.index_broken", error=str(error)[:300], kept_in=str(aside))
            _forget_chroma()
            return _Index(folder)

    def _repair(self) -> int:
        """Bring the index to the truth; returns how many entries were put or dropped."""
        has = self._index.digests()
        want = {i: digest(self._ledger.tricks[i], s) for i, s in self._ledger.newest_standings().items()}
        stale = [i for i, d in want.items() if has.get(i) != d]
        extra = [i for i in has if i not in want]
        if stale or extra:
            log.info("memory.index_repaired", put=len(stale), dropped=len(extra))
            self._index.put(self._ledger, stale)
            self._index.drop(extra)
        return len(stale) + len(extra)

    def _index_again(self, ids: list[str]) -> None:
        try:
            self._index.put(self._ledger, ids)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the record is safe in the truth; the index must not cost us the acknowledgement
            log.warning("memory.index_failed", error=str(error)[:300])
            self.rebuild()

    def _nearest(self, text: str, chosen: Mapping[str, TrickStanding], n: int) -> Collection[str]:
        query = embedding.embed([text])[0]
        if not query.any():  # no word that the embedding knows: nothing is nearer than another
            return chosen
        with self._turn:
            count = max(n, _NEAREST)
            only = None if len(chosen) == len(self._ledger.tricks) else list(chosen)
            if count >= len(chosen) or (only and len(only) > _BATCH):
                return chosen
            try:
                return self._index.nearest(query, count, only)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                log.warning("memory.index_failed", error=str(error)[:300])
                self.rebuild()
                return chosen


class _Index:
    """Vectors of the tricks in a Chroma folder, by trick id. One process at a time: the owner."""

    def __init__(self, folder: Path) -> None:
        chromadb = importlib.import_module("chromadb")
        settings = importlib.import_module("chromadb.config").Settings(anonymized_telemetry=False)
        self._client = chromadb.PersistentClient(str(folder), settings=settings)
        # embedding_function=None: vectors come from us; Chroma's default would go to the network for a model
        self._entries = self._client.get_or_create_collection(
            COLLECTION, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )
        for other in self._client.list_collections():
            if other.name.startswith("tricks-") and other.name != COLLECTION:
                self._client.delete_collection(other.name)
        if self.digests():  # broken vector files show only when they are asked
            self._entries.query(query_embeddings=[[1.0] + [0.0] * (embedding.DIMENSIONS - 1)], n_results=1, include=["distances"])

    def close(self) -> None:
        self._client.close()

    def digests(self) -> dict[str, str]:
        """What is in the index: trick id -> digest of what it knows of it."""
        got = self._entries.get(include=["metadatas"])
        return {i: str((m or {}).get("digest", "")) for i, m in zip(got["ids"], got["metadatas"], strict=True)}

    def put(self, ledger: Ledger, ids: list[str]) -> None:
        standings = ledger.newest_standings()
        for begin in range(0, len(ids), _BATCH):
            batch = ids[begin : begin + _BATCH]
            tricks = [ledger.tricks[i] for i in batch]
            self._entries.upsert(
                ids=batch,
                embeddings=embedding.embed([searchable(t) for t in tricks]),
                metadatas=[
                    {"digest": digest(t, standings[i]), "problem": t.problem, "target": t.target, "kind": t.kind, "standing": standings[i]}
                    for i, t in zip(batch, tricks, strict=True)
                ],
            )

    def drop(self, ids: list[str]) -> None:
        for begin in range(0, len(ids), _BATCH):
            self._entries.delete(ids=ids[begin : begin + _BATCH])

    def nearest(self, query: NDArray[np.float32], count: int, only: list[str] | None) -> list[str]:
        """Ids of the `count` tricks (among `only`, if given) that are nearest to a unit vector in cosine."""
        found = self._entries.query(query_embeddings=[query], ids=only, n_results=count, include=["distances"])
        return [str(i) for i in found["ids"][0]]


def _forget_chroma() -> None:
    """Chroma caches a client by its path, also one that never started; without this a repaired folder stays unusable."""
    importlib.import_module("chromadb.api.shared_system_client").SharedSystemClient.clear_system_cache()


def _not_recorded(evaluation: Evaluation) -> str:
    """Why this is not an evaluation as a run folder's chain holds it ("" if it is)."""
    if evaluation.id and evaluation.chained(evaluation.previous).id == evaluation.id:
        return ""
    return "the evaluation is not recorded, or was changed after it was recorded (its hash does not fit)"


def _not_of(trick: Trick, evaluation: Evaluation) -> str:
    """Why an evaluation is not one of this trick ("" if it is)."""
    if why := _not_recorded(evaluation):
        return why
    if evaluation.id not in trick.evaluations:
        return f"the trick does not name evaluation {evaluation.id[:12]}"
    pairs = {
        "candidate": (trick.candidate, evaluation.candidate), "problem": (trick.problem, evaluation.problem),
        "size": (trick.size, evaluation.size), "environment": (trick.environment, evaluation.environment.id),
    }  # fmt: skip
    wrong = [f"{name} {mine[:16]}, not {its[:16]}" for name, (mine, its) in pairs.items() if mine != its]
    return f"the trick claims {wrong[0]} as the evaluation has it" if wrong else ""
