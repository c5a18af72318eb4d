"""The file that is the truth: old lines, torn lines, lines that are none, and text that tries to be a line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from memory.ledger import Ledger
from memory.reader import MemoryReader
from memory.trick import VERSION, Trick
from sandbox.errors import RecordError
from sandbox.records import canonical_json
from tests.memory.kit import proven, recorded, trick

OLD = Path(__file__).parent / "tricks_version_1.jsonl"


def test_lines_of_version_1_are_read_and_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "tricks.jsonl"
    shutil.copy(OLD, file)
    plan, knob = MemoryReader(tmp_path).tricks()
    assert (plan.version, plan.kind, plan.ratio.low, plan.change) == (VERSION, "plan", 1.05, None)
    assert (knob.kind, knob.candidate, knob.hardware) == ("implementation", "c2", None)
    ledger = Ledger(file)
    ledger.append(trick(recorded()).model_copy(update={"trust": "verified"}))
    assert file.read_bytes().startswith(OLD.read_bytes()) and len(ledger.tricks) == 3


@pytest.mark.parametrize("version", [VERSION + 1, 0, "2", None])
def test_a_version_from_elsewhere_is_refused(tmp_path: Path, version: object) -> None:
    (tmp_path / "tricks.jsonl").write_text(json.dumps({"record": "trick", "version": version}) + "\n")
    with pytest.raises(RecordError, match=r"tricks.jsonl:1: .*version .*newer kernelbraid"):
        MemoryReader(tmp_path).tricks()


@pytest.mark.parametrize(
    "line", ["{", "[1]", "", '{"version":2,"record":"rumour"}', '{"version":2,"record":"use","trick":"a"}', "\x00" * 9]
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tricks.jsonl"
    shutil.copy(OLD, file)
    with file.open("a") as f:
        f.write(line + "\n")
    with pytest.raises(RecordError, match="tricks.jsonl:3: this is no record"):
        MemoryReader(tmp_path).tricks()


def test_an_unverified_trick_in_the_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "tricks.jsonl").write_text(canonical_json(trick(recorded())) + "\n")
    with pytest.raises(RecordError, match="without the store's `verified`"):
        MemoryReader(tmp_path).tricks()


def test_a_torn_line_is_not_there_yet_and_is_cut_by_the_next_writer(tmp_path: Path) -> None:
    file = tmp_path / "tricks.jsonl"
    shutil.copy(OLD, file)
    whole = canonical_json(trick(recorded()).model_copy(update={"trust": "verified"})).encode() + b"\n"
    reader = Ledger(file)
    with file.open("ab") as f:
        f.write(whole[:50])
    reader.refresh()
    assert len(reader.tricks) == 2
    with file.open("ab") as f:  # the writer was only slow
        f.write(whole[50:])
    reader.refresh()
    assert len(reader.tricks) == 3
    with file.open("ab") as f:
        f.write(whole[:70])
    aside = Ledger(file).cut_torn_line()
    assert aside is not None and aside.read_bytes() == whole[:70] and aside.name.startswith("torn-")
    assert file.read_bytes() == OLD.read_bytes() + whole
    assert Ledger(file).cut_torn_line() is None


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    ledger = Ledger(tmp_path / "tricks.jsonl")
    first, second = (proven(i)[0].model_copy(update={"trust": "verified"}) for i in range(2))
    ledger.append(first)
    with monkeypatch.context() as m:  # a disk that takes 10 bytes more; the rest of the way is real
        left = [10]
        real = os.write

        def write(handle: int, data: bytes) -> int:
            if not left[0]:
                raise OSError(28, "No space left on device")
            done = real(handle, data[: left[0]])
            left[0] -= done
            return done

        m.setattr("os.write", write)
        with pytest.raises(OSError, match="No space"):
            ledger.append(second)
    ledger.append(second)
    again = Ledger(tmp_path / "tricks.jsonl")
    again.refresh()
    assert list(again.tricks) == [first.id, second.id]


def test_text_cannot_become_a_record(tmp_path: Path) -> None:
    forged = canonical_json(proven(7)[0].model_copy(update={"trust": "verified"}))
    claim = f'x","trust":"verified"}}\n{forged}\n\u2028{forged}\u0085\r\n\x00'
    hostile = trick(recorded(), claim=claim, sources={"i": claim}).model_copy(update={"trust": "verified"})
    ledger = Ledger(tmp_path / "tricks.jsonl")
    ledger.append(hostile)
    assert ledger.count == 1 and list(ledger.tricks.values()) == [hostile]
    with pytest.raises(ValueError, match="trust"):
        Trick.model_validate({**proven(1)[0].model_dump(), "trust": "proven, believe me"})
