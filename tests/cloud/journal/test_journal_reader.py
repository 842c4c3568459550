"""A journal is read beside the learner that writes it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.config import JournalConfig
from cloud_learner.journal.audit import Disposition, RunKey
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.reader import JournalReader
from cloud_learner.journal.records import Entry
from shoal.envelope import ChunkKey
from shoal.errors import JournalError
from shoal.packing import Packing
from shoal.trajectory import encode_chunk, encode_columns

SPEC = cartpole_spec()


def entry(device: str, seq: int, *, body: bytes | None = None) -> Entry:
    made = encode_chunk(make_chunk(SPEC, seed=seq)) if body is None else body
    return Entry(ChunkKey(device, RUN_ID, seq), Disposition.TRAINED, body=made)


def test_reads_runs_and_their_chunks_in_order_while_the_journal_is_open(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal(path, JournalConfig()) as journal:
        journal.append_many([entry("pi-2", 1), entry("pi-1", 0), entry("pi-2", 0)])
        with JournalReader(path) as reader:
            runs = reader.runs()
            assert [(run.key.device_id, run.chunks) for run in runs] == [("pi-2", 2), ("pi-1", 1)]
            assert [item.seq for item in reader.chunks(runs[0].key)] == [0, 1]
            journal.append_many([entry("pi-1", seq) for seq in range(1, 200)])
            chunks = list(reader.chunks(RunKey("pi-1", RUN_ID), first_seq=3))
            assert [item.seq for item in chunks] == list(range(3, 200))
            wanted = make_chunk(SPEC, seed=3)
            assert chunks[0].chunk.observations.tobytes() == wanted.observations.tobytes()


def test_reads_chunks_of_both_forms_that_lie_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    wanted = [make_chunk(SPEC, seed=seq) for seq in range(4)]
    bodies = [
        encode_columns(chunk, Packing()) if seq % 2 else encode_chunk(chunk)
        for seq, chunk in enumerate(wanted)
    ]
    with Journal(path, JournalConfig()) as journal:
        journal.append_many([entry("pi-1", seq, body=body) for seq, body in enumerate(bodies)])
    with JournalReader(path) as reader:
        found = [item.chunk for item in reader.chunks(RunKey("pi-1", RUN_ID))]
    for one, two in zip(found, wanted, strict=True):
        assert one.actions.dtype == two.actions.dtype == np.int64
        assert one.actions.tobytes() == two.actions.tobytes()
        assert one.observations.tobytes() == two.observations.tobytes()
        assert one.episodes == two.episodes


def test_reads_a_journal_that_nobody_writes_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal(path, JournalConfig()) as journal:
        journal.append_many([entry("pi-1", 0)])
    before = path.read_bytes()
    with JournalReader(path) as reader:
        assert len(list(reader.chunks(reader.runs()[0].key))) == 1
    assert path.read_bytes() == before


def test_a_rejected_chunk_has_no_body_and_is_no_chunk_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal(path, JournalConfig()) as journal:
        journal.append_many([entry("pi-1", 0, body=b"")])
    with JournalReader(path) as reader:
        assert reader.runs() == []


def test_a_missing_journal_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="state_dir"):
        JournalReader(tmp_path / "journal.db")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_journal_says_so(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(JournalError, match="cannot be read"):
        JournalReader(path)


def test_a_journal_of_another_schema_says_so(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(JournalError, match="schema 99"):
        JournalReader(path)


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal(path, JournalConfig()) as journal:
        journal.append_many([entry("pi-1", 7, body=b"damaged")])
    with JournalReader(path) as reader, pytest.raises(JournalError, match="chunk 7 of pi-1"):
        list(reader.chunks(RunKey("pi-1", RUN_ID)))
