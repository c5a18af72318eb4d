"""How tricks are found: cosine of an offline embedding, fused with BM25 over words. Pure functions of texts."""

from __future__ import annotations

import hashlib
import importlib
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memory.embedding import embed
from memory.trick import Trick, TrickStanding

BM25_WEIGHT = 0.3  # of BM25 over its best score; measured on kernel sentences beside the cosine alone and BM25 alone
_LONGEST = 4000  # characters of a text that count


@dataclass(frozen=True)
class Found:
    """A trick with its place in the answer: `score` = cosine + BM25_WEIGHT * words; `words` is BM25 over the best BM25."""

    trick: Trick
    standing: TrickStanding
    score: float
    cosine: float
    words: float


def searchable(trick: Trick) -> str:
    """The text that a trick is found by: claim, kinds, slots, implementations with knobs, rewrites, when it applies."""
    parts = [trick.claim, trick.kind, *trick.stage_kinds, *trick.slots]
    if trick.change:
        parts += [f"{slot} {choice}" for slot, choice in sorted(trick.change.choices.items())]
        parts += [str(rewrite) for rewrite in trick.change.rewrites]
    parts.append(trick.applies)
    return "\n".join(p for p in parts if p)[:_LONGEST]


def digest(trick: Trick, standing: TrickStanding) -> str:
    """Hash of all that an index knows of a trick; the index is out of date where it differs."""
    return hashlib.sha256(f"{standing}\n{searchable(trick)}".encode()).hexdigest()


def words(text: str) -> list[str]:
    """Lower-case words with a crude singular; an identifier counts as itself and as its parts (`o_proj`, `o`, `proj`)."""
    out: list[str] = []
    for word in re.findall(r"[a-z0-9_]+", text.lower()):
        parts = [p for p in word.split("_") if p]
        out += [word, *parts] if len(parts) > 1 else parts
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in out]


def word_scores(query: str, texts: Sequence[str]) -> list[float]:
    """BM25 of each text over the best one, 0 to 1; all 0 if no word of the query is in any."""
    asked = words(query)
    corpus = [words(t) for t in texts]
    if not asked or not any(corpus):
        return [0.0] * len(texts)
    bm25s = importlib.import_module("bm25s")
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG when it is imported
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    scores = np.asarray(index.get_scores(asked), np.float64)
    best = float(scores.max(initial=0.0))
    return [float(s) / best for s in scores] if best > 0 else [0.0] * len(texts)


class Vectors:
    """Vectors of the tricks that were asked about so far; a trick's text never changes, so they are kept by id."""

    def __init__(self) -> None:
        self._known: dict[str, NDArray[np.float64]] = {}

    def cosines(self, query: str, tricks: Mapping[str, Trick]) -> dict[str, float]:
        """Cosine of a query with each trick, by id; the same to the last bit whatever other tricks are asked with it."""
        new = [i for i in tricks if i not in self._known]
        vectors = embed([query, *(searchable(tricks[i]) for i in new)]).astype(np.float64)
        self._known |= zip(new, vectors[1:], strict=True)
        return {i: float((self._known[i] * vectors[0]).sum()) for i in tricks}


def rank(
    query: str, tricks: Mapping[str, Trick], standings: Mapping[str, TrickStanding], near: Collection[str], vectors: Vectors, n: int
) -> list[Found]:
    """The best `n` of the tricks named in `standings`, best first; words are weighed over all of `tricks`.

    `near` must hold the `n` of them that are nearest in cosine, and may hold more: any other one without a word of the query is
    behind these, and those with a word are looked at anyway. So an index that knows only the nearest changes no answer."""
    lexical = dict(zip(tricks, word_scores(query, [searchable(t) for t in tricks.values()]), strict=True))
    asked = set(near)
    candidates = {i: tricks[i] for i in standings if i in asked or lexical[i] > 0}
    found = [
        Found(candidates[i], standings[i], cosine + BM25_WEIGHT * lexical[i], cosine, lexical[i])
        for i, cosine in vectors.cosines(query, candidates).items()
    ]
    return sorted(found, key=lambda f: (-f.score, f.trick.id))[:n]
