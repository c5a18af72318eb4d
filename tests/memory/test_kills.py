"""A writer that is killed at any moment loses nothing that it acknowledged."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from memory.store import MemoryReader, MemoryStore

KILLS = 20

# One process with everything imported; each child is a writer of its own: fork before the store is opened.
WRITER = """
import os, signal, sys
from pathlib import Path
import chromadb, memory.embedding
from memory.store import MemoryStore
from tests.memory.kit import failure, proven
memory.embedding.embed(["warm"])
for turn in sys.stdin:
    pid = os.fork()
    if pid:
        print("pid", pid, flush=True)
        os.waitpid(pid, 0)
        print("ended", flush=True)
        continue
    begin = int(turn)
    store = MemoryStore(Path(sys.argv[1]))
    for i in range(begin, begin + 100000):
        one, proof = proven(i, claim=f"trick {i} " + "word " * (i % 400))
        assert store.admit(one, proof, "unfused") == ""
        os.write(1, f"trick {one.id}\\n".encode())  # one write: a kill can't tear the line, as it can tear print's
        store.fail(failure(i))
        os.write(1, f"failure {failure(i).id}\\n".encode())
"""


def test_twenty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, repo: Path) -> None:
    rng = random.Random(11)
    acknowledged: set[str] = set()
    torn = repaired = 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=repo
    ) as mother:
        assert mother.stdin and mother.stdout
        for turn in range(KILLS):
            mother.stdin.write(f"{turn * 100000}\n")
            pid = int(mother.stdout.readline().split()[1])
            deadline = float("inf")
            while (line := mother.stdout.readline()) != "ended\n":
                assert line, "the writer ended by itself"
                acknowledged.add(line.split()[1])
                deadline = min(deadline, time.monotonic() + rng.uniform(0, 0.15))  # from its first record on, at any moment
                if not select.select([mother.stdout], [], [], max(0.0, deadline - time.monotonic()))[0] or time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
            torn += bool(list(tmp_path.glob("torn-*")))
            with MemoryStore(tmp_path) as store:
                repaired += store.repaired
                stats = store.stats()
                assert stats["index"] == stats["tricks"] == len(store.tricks())
                held = {*store._ledger.tricks, *store._ledger.failures}
                assert acknowledged <= held
        mother.stdin.close()
    assert len(acknowledged) > 2 * KILLS
    assert not list(tmp_path.glob("index-broken-*"))
    reader = MemoryReader(tmp_path)
    assert {f.trick.id for f in reader.search("trick", 10**6)} == {t.id for t in reader.tricks()}
    print(f"{KILLS} kills, {len(acknowledged)} acknowledged, {repaired} index entries repaired, torn {torn}")
