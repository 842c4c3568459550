"""The spool keeps what was made, in order, whatever happens to the process or the disk."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spools import DEADLINE_S, RUN, events_of, ledger_of, open_spool, run_id_of, seqs_of

from edge_agent.spool.run_ledger import RunLedger, coalesce
from edge_agent.spool.spool import Spool
from edge_agent.spool.spool_file import KEEP_RUNS
from shoal.ranges import Ranges


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.sqlite"


def test_gives_chunks_back_in_order_with_their_oldest_number(path: Path) -> None:
    with open_spool(path) as spool:
        assert [spool.append(b"%d" % n, policy_version=n) for n in range(5)] == [0, 1, 2, 3, 4]
        assert spool.flush(DEADLINE_S)
        assert spool.discard(RUN, Ranges.of([0, 3])) == 2
        chunks = spool.pending(10, {(RUN, 2)})
        assert [(c.seq, c.body, c.policy_version, c.oldest_seq) for c in chunks] == [
            (1, b"1", 1, 1),
            (4, b"4", 4, 1),
        ]
        assert ledger_of(spool) == RunLedger(RUN, 5, Ranges.of([1, 2, 4]), Ranges())


def test_an_acknowledged_chunk_is_forgotten_and_an_unknown_one_ignored(path: Path) -> None:
    with open_spool(path) as spool:
        spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        assert spool.discard(run_id_of(9), Ranges.upto(100)) == 0
        assert spool.discard(RUN, Ranges.upto(100)) == 1
        assert spool.discard(RUN, Ranges.upto(100)) == 0
        assert seqs_of(spool) == []
        assert spool.flush(DEADLINE_S)
        assert spool.size_bytes == 0
    with open_spool(path, run_id_of(1)) as spool:
        assert seqs_of(spool) == []


def test_acknowledged_chunks_leave_together_and_at_once_when_somebody_waits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.spool.spool.DELETIONS_WAIT_S", DEADLINE_S)
    commits = []
    with open_spool(path) as spool:
        for _ in range(8):
            spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        with spool.listening(lambda: commits.append(1)):
            for seq in range(8):
                assert spool.discard(RUN, Ranges.of([seq])) == 1
            assert spool.flush(DEADLINE_S)
        assert len(commits) == 1
        assert spool.size_bytes == 0


def test_what_leaves_is_not_written_to_the_disk_once_more(path: Path) -> None:
    body, log = bytes(range(250)) * 200, path.with_name(f"{path.name}-wal")
    with open_spool(path) as spool:
        for _ in range(8):
            spool.append(body, 1)
        assert spool.flush(DEADLINE_S)
        before = log.stat().st_size
        assert spool.discard(RUN, Ranges.upto(8)) == 8
        assert spool.flush(DEADLINE_S)
        assert log.stat().st_size - before < 4 * len(body)


def test_chunks_of_earlier_runs_come_first_and_can_be_acknowledged(path: Path) -> None:
    for n in range(3):
        with open_spool(path, run_id_of(n)) as spool:
            spool.append(b"a", 1)
            spool.append(b"b", 1)
    with open_spool(path, run_id_of(3)) as spool:
        spool.append(b"c", 1)
        assert spool.flush(DEADLINE_S)
        assert seqs_of(spool) == [(run_id_of(n), s) for n in range(3) for s in range(2)] + [
            (run_id_of(3), 0)
        ]
        assert spool.discard(run_id_of(1), Ranges.upto(2)) == 2
        assert ledger_of(spool, run_id_of(1)) == RunLedger(run_id_of(1), 2, Ranges(), Ranges())


def test_when_full_the_oldest_go_first_and_each_is_counted(path: Path) -> None:
    events = events_of()
    with open_spool(path, max_bytes=1000, events=events) as spool:
        for _ in range(25):
            spool.append(bytes(100), 1)
            assert spool.flush(DEADLINE_S)
        assert [seq for _, seq in seqs_of(spool)] == list(range(15, 25))
        assert ledger_of(spool) == RunLedger(
            RUN, 25, Ranges.from_spans([(15, 25)]), Ranges.upto(15)
        )
        assert spool.size_bytes == 1000
    assert [event.name for event in events.take()] == ["spool_full"]
    with open_spool(path, run_id_of(1), max_bytes=1000) as spool:
        assert ledger_of(spool).dropped == Ranges.upto(15)


def test_chunks_of_versions_that_are_too_old_expire_and_each_is_counted(path: Path) -> None:
    oldest = 0
    with Spool(
        path, max_bytes=2**20, run_id=RUN, events=events_of(), oldest_version=lambda: oldest
    ) as spool:
        for version in (1, 1, 2, 3):
            spool.append(b"x", version)
        assert spool.flush(DEADLINE_S)
        oldest = 2
        spool.expire()
        assert spool.flush(DEADLINE_S)
        assert [seq for _, seq in seqs_of(spool)] == [2, 3]
        assert spool.size_bytes == 2
        spool.append(b"late", 1)  # a device that fell back, or did not follow yet
        spool.append(b"new", 3)
        assert spool.flush(DEADLINE_S)
        assert ledger_of(spool) == RunLedger(
            RUN, 6, Ranges.of([2, 3, 5]), Ranges(), Ranges.of([0, 1, 4])
        )
    with open_spool(path, run_id_of(1)) as spool:
        assert ledger_of(spool).expired == Ranges.of([0, 1, 4])
        assert seqs_of(spool) == [(RUN, 2), (RUN, 3), (RUN, 5)]


def test_what_was_kept_while_no_learner_spoke_expires_when_one_does_again(path: Path) -> None:
    oldest = 5
    with Spool(
        path, max_bytes=2**20, run_id=RUN, events=events_of(), oldest_version=lambda: oldest
    ) as spool:
        spool.append(b"x", 4)
        assert spool.flush(DEADLINE_S)
        oldest = 0
        spool.append(b"x", 4)
        assert spool.flush(DEADLINE_S)
        assert ledger_of(spool).spooled == Ranges.of([1])
        oldest = 5
        spool.expire()
        assert spool.flush(DEADLINE_S)
        assert ledger_of(spool) == RunLedger(RUN, 2, Ranges(), Ranges(), Ranges.of([0, 1]))


def test_chunks_of_earlier_runs_expire_too(path: Path) -> None:
    with open_spool(path) as spool:
        spool.append(b"a", 1)
    with Spool(
        path, max_bytes=2**20, run_id=run_id_of(1), events=events_of(), oldest_version=lambda: 2
    ) as spool:
        spool.append(b"b", 2)
        assert spool.flush(DEADLINE_S)
        assert ledger_of(spool) == RunLedger(RUN, 1, Ranges(), Ranges(), Ranges.of([0]))
        assert seqs_of(spool) == [(run_id_of(1), 0)]


def test_goes_on_with_a_file_of_the_version_before(path: Path) -> None:
    with open_spool(path) as spool:
        spool.append(b"a", 1)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript("ALTER TABLE runs DROP COLUMN expired; PRAGMA user_version = 1;")
    with Spool(
        path, max_bytes=2**20, run_id=run_id_of(1), events=events_of(), oldest_version=lambda: 2
    ) as spool:
        assert ledger_of(spool).produced == 1
        spool.expire()
        assert spool.flush(DEADLINE_S)
        assert ledger_of(spool).expired == Ranges.of([0])


@pytest.mark.parametrize("page_bytes", [4096, 16_384])
def test_goes_on_with_a_file_of_other_pages(path: Path, page_bytes: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes:d}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE before (it INTEGER)")
    bodies = [bytes([n]) * 50_000 for n in range(3)]
    for run, body in enumerate(bodies):
        with Spool(path, max_bytes=2**20, run_id=run_id_of(run), events=events_of()) as spool:
            spool.append(body, 1)
            assert spool.flush(DEADLINE_S)
    with Spool(path, max_bytes=2**20, run_id=run_id_of(3), events=events_of()) as spool:
        assert [chunk.body for chunk in spool.pending(4, frozenset())] == bodies
        spool.discard(run_id_of(1), Ranges.upto(1))
        assert spool.flush(DEADLINE_S)
        assert [chunk.body for chunk in spool.pending(4, frozenset())] == bodies[::2]
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA page_size").fetchone() == (page_bytes,)


def test_a_group_larger_than_the_spool_keeps_its_newest(path: Path) -> None:
    with open_spool(path, max_bytes=250) as spool:
        spool.append(bytes(1000), 1)
        for _ in range(9):
            spool.append(bytes(100), 1)
        assert spool.flush(DEADLINE_S)
        run = ledger_of(spool)
        assert run.produced == 10
        assert run.spooled == Ranges.of([8, 9])
        assert run.dropped == Ranges.upto(8)


def test_counts_of_runs_long_past_are_forgotten(path: Path) -> None:
    for n in range(KEEP_RUNS + 3):
        with open_spool(path, run_id_of(n)) as spool:
            spool.append(b"x", 1)
            assert spool.flush(DEADLINE_S)
            if n:
                spool.discard(run_id_of(n), Ranges.upto(1))
    runs = [run.run_id for run in spool.ledger()]
    assert runs[0] == run_id_of(0)  # it still holds a chunk
    assert len(runs) == KEEP_RUNS + 1


def test_one_listener_hears_of_each_change(path: Path) -> None:
    heard = threading.Event()
    with open_spool(path) as spool:
        with spool.listening(heard.set):
            spool.append(b"x", 1)
            assert heard.wait(DEADLINE_S)
            assert seqs_of(spool) == [(RUN, 0)]
        heard.clear()
        spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        assert not heard.is_set()


@given(st.sets(st.integers(0, 300)), st.integers(1, 20))
def test_joined_spans_cover_all_they_did_and_are_few(members: set[int], limit: int) -> None:
    ranges = Ranges.of(members)
    joined = coalesce(ranges, limit)
    assert len(joined.spans) <= limit
    assert not ranges.difference(joined)
    if len(ranges.spans) <= limit:
        assert joined == ranges
