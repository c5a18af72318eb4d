"""Search: offline, the same for owner and reader, and better than chance on sentences as specialists write them."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memory.change import Change, Choice, Rewrite
from memory.embedding import DIMENSIONS, embed
from memory.reader import Where
from memory.retrieval import searchable, word_scores, words
from memory.store import MemoryReader, MemoryStore
from tests.memory.kit import CLAIMS, proven

QUERIES = {
    "fewer barriers by putting the norm into another phase": 0,
    "router all-to-all": 1,
    "nibbles int8 dot product": 2,
    "recurrent state memory bound": 3,
    "bf16 attention over cached rows": 4,
    "flags between blocks": 5,
    "broadcast activations columns": 6,
    "o_proj is unbalanced": 7,
}


def test_owner_and_reader_find_the_same_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memory.store._NEAREST", 20)  # so that Chroma has to leave most of them out
    rng = random.Random(5)
    vocabulary = sorted({w for c in CLAIMS for w in c.split()})
    with MemoryStore(tmp_path) as store:
        for i in range(90):
            claim = CLAIMS[i] if i < len(CLAIMS) else " ".join(rng.choices(vocabulary, k=8))
            slots = ("up",) if i % 3 == 0 else ()
            assert store.admit(*proven(i, claim=claim, slots=slots), "unfused") == ""
        reader = MemoryReader(tmp_path)
        places: list[Where] = [{}, {"slot": "up"}, {"standing": "verified", "problem": "p"}]
        for query in (*QUERIES, "zzz qqq", "", "\x00\u2028", "LEVELS=2 " * 2000):
            for where in places:
                for n in (1, 10, 90):
                    mine, theirs = store.search(query, n, where), reader.search(query, n, where)
                    assert mine == theirs and len(mine) == min(n, 30 if where.get("slot") else 90)
        assert store.search("barrier", 3, {"problem": "another"}) == [] == store.search("barrier", 0)


def test_what_is_meant_is_found(tmp_path: Path) -> None:
    with MemoryStore(tmp_path) as store:
        for i, claim in enumerate(CLAIMS):
            store.admit(*proven(i, claim=claim), "unfused")
        hits = [f"c{want}" in [f.trick.candidate for f in store.search(query, 2)] for query, want in QUERIES.items()]
    assert sum(hits) >= 7, dict(zip(QUERIES, hits, strict=True))


def test_a_trick_is_found_by_its_parts() -> None:
    change = Change(
        choices={"up": Choice(implementation="moe-experts/up-digits", knobs={"LEVELS": 2}, id="i")},
        rewrites=(Rewrite(kind="join", section="kda", subject="norm"),),
    )
    text = searchable(proven(0, claim="why", stage_kinds=("expert_up",), slots=("up",), change=change, applies="when memory-bound")[0])
    for part in ("why", "plan", "expert_up", "up moe-experts/up-digits{LEVELS=2}", "join kda/norm", "when memory-bound"):
        assert part in text
    assert words("O_proj's barriers, class") == ["o_proj", "o", "proj", "s", "barrier", "class"]
    assert word_scores("barrier", ["a barrier", "nothing"]) == [1.0, 0.0]
    assert word_scores("zzz", ["a barrier"]) == [0.0] == word_scores("", ["a barrier"]) == word_scores("a", [""])


def test_vectors_are_unit_or_zero_and_do_not_depend_on_the_batch() -> None:
    vectors = embed(["one barrier", "", "x " * 5000, "\u2028"])
    assert vectors.shape == (4, DIMENSIONS) and vectors.dtype == np.float32 and np.isfinite(vectors).all()
    assert np.linalg.norm(vectors[[0, 2]], axis=1) == pytest.approx([1, 1], abs=1e-5) and not vectors[1].any()
    assert embed(["one barrier"])[0] == pytest.approx(vectors[0], abs=1e-6)
    assert embed([]).shape == (0, DIMENSIONS)


NO_NETWORK = """
import logging, socket, sys
from pathlib import Path
def refuse(*a, **k): raise SystemExit(f"the network was asked: {a}")
socket.getaddrinfo = refuse
socket.socket.connect = socket.socket.connect_ex = refuse
import memory.store, memory.embedding
assert not {"chromadb", "wordllama", "bm25s"} & set(sys.modules), "a heavy import at module import"
from tests.memory.kit import proven
with memory.store.MemoryStore(Path(sys.argv[1])) as store:
    assert store.admit(*proven(1), "unfused") == ""
    print(store.search("claim")[0].trick.candidate, logging.getLogger().handlers)
"""


def test_nothing_goes_to_the_network_and_logging_is_left_alone(tmp_path: Path, repo: Path) -> None:
    cut_off = ["unshare", "-rn"]
    if subprocess.run([*cut_off, "true"], capture_output=True).returncode:
        cut_off = []  # then only the Python side is watched
    done = subprocess.run(
        [*cut_off, sys.executable, "-c", NO_NETWORK, str(tmp_path)], capture_output=True, text=True, timeout=120, cwd=repo,
        env={"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout == "c1 []\n", done.stderr
    assert done.stderr == "" and not (tmp_path / "home").exists()
