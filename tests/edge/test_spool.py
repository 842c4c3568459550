"""The spool keeps what was made, in order, whatever happens to the process or the disk."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.events import Events
from edge_agent.run_ledger import RunLedger, coalesce
from edge_agent.spool import MAX_QUEUED_BYTES, Spool
from edge_agent.spool_file import KEEP_RUNS
from shoal.errors import SpoolError
from shoal.ranges import Ranges
from shoal.v1 import device_pb2 as pb

RUN = bytes(16)
DEADLINE_S = 30.0


def _run(n: int) -> bytes:
    return n.to_bytes(16, "big")


def _events(run_id: bytes = RUN) -> Events:
    return Events("pi-1", run_id, clock=lambda: 0.0)


def _spool(
    path: Path, run_id: bytes = RUN, max_bytes: int = 2**20, events: Events | None = None
) -> Spool:
    return Spool(path, max_bytes=max_bytes, run_id=run_id, events=events or _events(run_id))


def _seqs(spool: Spool, limit: int = 1000) -> list[tuple[bytes, int]]:
    return [(chunk.run_id, chunk.seq) for chunk in spool.pending(limit, frozenset())]


def _fault(spool: Spool) -> str | None:
    return spool.fault


def _ledger(spool: Spool, run_id: bytes = RUN) -> RunLedger:
    return next(run for run in spool.ledger() if run.run_id == run_id)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.sqlite"


def test_gives_chunks_back_in_order_with_their_oldest_number(path: Path) -> None:
    with _spool(path) as spool:
        assert [spool.append(b"%d" % n, policy_version=n) for n in range(5)] == [0, 1, 2, 3, 4]
        assert spool.flush(DEADLINE_S)
        assert spool.discard(RUN, Ranges.of([0, 3])) == 2
        chunks = spool.pending(10, {(RUN, 2)})
        assert [(c.seq, c.body, c.policy_version, c.oldest_seq) for c in chunks] == [
            (1, b"1", 1, 1),
            (4, b"4", 4, 1),
        ]
        assert _ledger(spool) == RunLedger(RUN, 5, Ranges.of([1, 2, 4]), Ranges())


def test_an_acknowledged_chunk_is_forgotten_and_an_unknown_one_ignored(path: Path) -> None:
    with _spool(path) as spool:
        spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        assert spool.discard(_run(9), Ranges.upto(100)) == 0
        assert spool.discard(RUN, Ranges.upto(100)) == 1
        assert spool.discard(RUN, Ranges.upto(100)) == 0
        assert _seqs(spool) == []
        assert spool.flush(DEADLINE_S)
        assert spool.size_bytes == 0
    with _spool(path, _run(1)) as spool:
        assert _seqs(spool) == []


def test_acknowledged_chunks_leave_together_and_at_once_when_somebody_waits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.spool.DELETIONS_WAIT_S", DEADLINE_S)
    commits = []
    with _spool(path) as spool:
        for _ in range(8):
            spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        with spool.listening(lambda: commits.append(1)):
            for seq in range(8):
                assert spool.discard(RUN, Ranges.of([seq])) == 1
            assert spool.flush(DEADLINE_S)
        assert len(commits) == 1
        assert spool.size_bytes == 0


def test_chunks_of_earlier_runs_come_first_and_can_be_acknowledged(path: Path) -> None:
    for n in range(3):
        with _spool(path, _run(n)) as spool:
            spool.append(b"a", 1)
            spool.append(b"b", 1)
    with _spool(path, _run(3)) as spool:
        spool.append(b"c", 1)
        assert spool.flush(DEADLINE_S)
        assert _seqs(spool) == [(_run(n), s) for n in range(3) for s in range(2)] + [(_run(3), 0)]
        assert spool.discard(_run(1), Ranges.upto(2)) == 2
        assert _ledger(spool, _run(1)) == RunLedger(_run(1), 2, Ranges(), Ranges())


def test_when_full_the_oldest_go_first_and_each_is_counted(path: Path) -> None:
    events = _events()
    with _spool(path, max_bytes=1000, events=events) as spool:
        for _ in range(25):
            spool.append(bytes(100), 1)
            assert spool.flush(DEADLINE_S)
        assert [seq for _, seq in _seqs(spool)] == list(range(15, 25))
        assert _ledger(spool) == RunLedger(RUN, 25, Ranges.from_spans([(15, 25)]), Ranges.upto(15))
        assert spool.size_bytes == 1000
    assert [event.name for event in events.take()] == ["spool_full"]
    with _spool(path, _run(1), max_bytes=1000) as spool:
        assert _ledger(spool).dropped == Ranges.upto(15)


def test_chunks_of_versions_that_are_too_old_expire_and_each_is_counted(path: Path) -> None:
    oldest = 0
    with Spool(
        path, max_bytes=2**20, run_id=RUN, events=_events(), oldest_version=lambda: oldest
    ) as spool:
        for version in (1, 1, 2, 3):
            spool.append(b"x", version)
        assert spool.flush(DEADLINE_S)
        oldest = 2
        spool.expire()
        assert spool.flush(DEADLINE_S)
        assert [seq for _, seq in _seqs(spool)] == [2, 3]
        assert spool.size_bytes == 2
        spool.append(b"late", 1)  # a device that fell back, or did not follow yet
        spool.append(b"new", 3)
        assert spool.flush(DEADLINE_S)
        assert _ledger(spool) == RunLedger(
            RUN, 6, Ranges.of([2, 3, 5]), Ranges(), Ranges.of([0, 1, 4])
        )
    with _spool(path, _run(1)) as spool:
        assert _ledger(spool).expired == Ranges.of([0, 1, 4])
        assert _seqs(spool) == [(RUN, 2), (RUN, 3), (RUN, 5)]


def test_what_was_kept_while_no_learner_spoke_expires_when_one_does_again(path: Path) -> None:
    oldest = 5
    with Spool(
        path, max_bytes=2**20, run_id=RUN, events=_events(), oldest_version=lambda: oldest
    ) as spool:
        spool.append(b"x", 4)
        assert spool.flush(DEADLINE_S)
        oldest = 0
        spool.append(b"x", 4)
        assert spool.flush(DEADLINE_S)
        assert _ledger(spool).spooled == Ranges.of([1])
        oldest = 5
        spool.expire()
        assert spool.flush(DEADLINE_S)
        assert _ledger(spool) == RunLedger(RUN, 2, Ranges(), Ranges(), Ranges.of([0, 1]))


def test_chunks_of_earlier_runs_expire_too(path: Path) -> None:
    with _spool(path) as spool:
        spool.append(b"a", 1)
    with Spool(
        path, max_bytes=2**20, run_id=_run(1), events=_events(), oldest_version=lambda: 2
    ) as spool:
        spool.append(b"b", 2)
        assert spool.flush(DEADLINE_S)
        assert _ledger(spool) == RunLedger(RUN, 1, Ranges(), Ranges(), Ranges.of([0]))
        assert _seqs(spool) == [(_run(1), 0)]


def test_goes_on_with_a_file_of_the_version_before(path: Path) -> None:
    with _spool(path) as spool:
        spool.append(b"a", 1)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript("ALTER TABLE runs DROP COLUMN expired; PRAGMA user_version = 1;")
    with Spool(
        path, max_bytes=2**20, run_id=_run(1), events=_events(), oldest_version=lambda: 2
    ) as spool:
        assert _ledger(spool).produced == 1
        spool.expire()
        assert spool.flush(DEADLINE_S)
        assert _ledger(spool).expired == Ranges.of([0])


@pytest.mark.parametrize("page_bytes", [4096, 16_384])
def test_goes_on_with_a_file_of_other_pages(path: Path, page_bytes: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes:d}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE before (it INTEGER)")
    bodies = [bytes([n]) * 50_000 for n in range(3)]
    for run, body in enumerate(bodies):
        with Spool(path, max_bytes=2**20, run_id=_run(run), events=_events()) as spool:
            spool.append(body, 1)
            assert spool.flush(DEADLINE_S)
    with Spool(path, max_bytes=2**20, run_id=_run(3), events=_events()) as spool:
        assert [chunk.body for chunk in spool.pending(4, frozenset())] == bodies
        spool.discard(_run(1), Ranges.upto(1))
        assert spool.flush(DEADLINE_S)
        assert [chunk.body for chunk in spool.pending(4, frozenset())] == bodies[::2]
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA page_size").fetchone() == (page_bytes,)


def test_a_group_larger_than_the_spool_keeps_its_newest(path: Path) -> None:
    with _spool(path, max_bytes=250) as spool:
        spool.append(bytes(1000), 1)
        for _ in range(9):
            spool.append(bytes(100), 1)
        assert spool.flush(DEADLINE_S)
        run = _ledger(spool)
        assert run.produced == 10
        assert run.spooled == Ranges.of([8, 9])
        assert run.dropped == Ranges.upto(8)


def test_a_slow_disk_bounds_the_memory_and_counts_what_it_costs(path: Path) -> None:
    body = bytes(MAX_QUEUED_BYTES // 4)
    with _spool(path, max_bytes=2**40) as spool:
        with spool._lock:  # the writer cannot take anything meanwhile
            for _ in range(10):
                spool.append(body, 1)
            assert spool._queued_bytes <= MAX_QUEUED_BYTES
        assert spool.flush(DEADLINE_S)
        run = _ledger(spool)
        assert run.produced == 10
        assert run.dropped == Ranges.upto(6)
        assert run.spooled == Ranges.from_spans([(6, 10)])


def test_a_second_agent_on_the_same_spool_is_told_so(path: Path) -> None:
    with (
        _spool(path),
        pytest.raises(SpoolError, match=r"another agent uses .*spool\.sqlite"),
        _spool(path, _run(1)),
    ):
        pass


def test_a_directory_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SpoolError, match="state_dir"),
        _spool(tmp_path / "file" / "spool.sqlite"),
    ):
        pass


def test_a_spool_of_a_newer_agent_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SpoolError, match="update the agent"), _spool(path):
        pass


def test_a_file_that_is_no_database_is_kept_aside(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)
    events = _events()
    with _spool(path, events=events) as spool:
        spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        assert _seqs(spool) == [(RUN, 0)]
    assert [event.name for event in events.take()] == ["spool_damaged"]
    assert path.with_name("spool.sqlite.damaged").read_bytes().startswith(b"garbage")


def test_counts_of_runs_long_past_are_forgotten(path: Path) -> None:
    for n in range(KEEP_RUNS + 3):
        with _spool(path, _run(n)) as spool:
            spool.append(b"x", 1)
            assert spool.flush(DEADLINE_S)
            if n:
                spool.discard(_run(n), Ranges.upto(1))
    runs = [run.run_id for run in spool.ledger()]
    assert runs[0] == _run(0)  # it still holds a chunk
    assert len(runs) == KEEP_RUNS + 1


def test_a_full_disk_drops_the_new_counts_it_and_recovers(path: Path) -> None:
    events = _events()
    with _spool(path, max_bytes=2**30, events=events) as spool:
        spool.append(bytes(1000), 1)
        assert spool.flush(DEADLINE_S)
        assert spool._file._db is not None
        pages = spool._file._db.execute("PRAGMA page_count").fetchone()[0]
        spool._file._db.execute(f"PRAGMA max_page_count = {pages}")
        for _ in range(3):
            spool.append(bytes(100_000), 1)
            assert spool.flush(DEADLINE_S)
        assert _ledger(spool) == RunLedger(RUN, 4, Ranges.of([0]), Ranges.of([1, 2, 3]))
        assert _fault(spool) is not None
        spool._file._db.execute(f"PRAGMA max_page_count = {2**30}")
        spool.append(bytes(100_000), 1)
        assert spool.flush(DEADLINE_S)
        assert _fault(spool) is None
        assert _ledger(spool).spooled == Ranges.of([0, 4])
    assert [event.name for event in events.take()] == ["spool_fault", "spool_recovered"]
    with _spool(path, _run(1)) as spool:
        assert _ledger(spool) == RunLedger(RUN, 5, Ranges.of([0, 4]), Ranges.of([1, 2, 3]))


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Limits the size of any file this process writes: what a full disk does, for real."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_a_write_the_system_refuses_never_raises_where_the_actor_is(
    path: Path, small_files: Callable[[int], None]
) -> None:
    events = _events()
    with _spool(path, max_bytes=2**30, events=events) as spool:
        spool.append(bytes(1000), 1)
        assert spool.flush(DEADLINE_S)
        small_files(200_000)
        for _ in range(20):
            spool.append(os.urandom(60_000), 1)
            assert spool.flush(DEADLINE_S)
        run = _ledger(spool)
        assert run.produced == 21
        assert run.dropped
        assert run.spooled.union(run.dropped) == Ranges.upto(21)
        small_files(resource.RLIM_INFINITY)
        assert spool.append(bytes(1000), 1) == 21
        assert spool.flush(DEADLINE_S)
        assert _fault(spool) is None
        assert _ledger(spool).spooled.contains(21)
        assert len(_seqs(spool)) == _ledger(spool).spooled.count()
    assert {event.name for event in events.take()} >= {"spool_fault", "spool_recovered"}


def test_acknowledged_chunks_leave_a_full_disk_once_it_has_room(
    path: Path, small_files: Callable[[int], None]
) -> None:
    with _spool(path, max_bytes=2**30) as spool:
        for _ in range(4):
            spool.append(bytes(1000), 1)
        assert spool.flush(DEADLINE_S)
        small_files(1)
        assert spool.discard(RUN, Ranges.of([0, 1])) == 2
        assert spool.flush(DEADLINE_S)
        assert _fault(spool) is not None
        assert [seq for _, seq in _seqs(spool)] == [2, 3]
        small_files(resource.RLIM_INFINITY)
        spool.append(bytes(1000), 1)
        assert spool.flush(DEADLINE_S)
        assert spool.size_bytes == 3000


def test_a_file_damaged_in_mid_run_costs_its_chunks_and_nothing_else(path: Path) -> None:
    events = _events()
    with _spool(path, events=events) as spool:
        for _ in range(50):
            spool.append(os.urandom(3000), 1)
        assert spool.flush(DEADLINE_S)
        assert spool._file._db is not None
        spool._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.seek(0)
            file.write(os.urandom(path.stat().st_size))
        spool._file.close()
        spool.append(b"after", 1)
        assert spool.flush(DEADLINE_S)
        run = _ledger(spool)
        assert run.spooled.union(run.dropped) == Ranges.upto(51)
        spool.append(b"later", 1)
        assert spool.flush(DEADLINE_S)
        assert _ledger(spool).spooled.contains(51)
    assert "spool_damaged" in [event.name for event in events.take()]


_WRITER = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    from edge_agent.events import Events
    from edge_agent.spool import Spool
    run_id = os.urandom(16)
    with Spool(Path(sys.argv[1]), max_bytes=2**30, run_id=run_id,
               events=Events("pi-1", run_id, clock=time.time)) as spool:
        def tell():
            run = spool.ledger()[-1]
            print(run_id.hex(), run.produced, run.spooled.count(), flush=True)
        with spool.listening(tell):
            while True:
                spool.append(os.urandom(500), 1)
                time.sleep(0)
""")


def test_survives_kill_9_with_all_it_ever_showed(path: Path) -> None:
    shown: dict[bytes, int] = {}
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        with process, process.stdout:
            for line in process.stdout:
                name, made, spooled = line.split()
                assert made == spooled
                shown[bytes.fromhex(name)] = int(made)
                if int(made) > 40:
                    process.kill()
                    break
    with _spool(path) as spool:
        runs = {run.run_id: run for run in spool.ledger()}
        for run_id, produced in shown.items():
            assert runs[run_id].produced >= produced > 0
            assert runs[run_id].spooled == Ranges.upto(runs[run_id].produced)
        assert len(_seqs(spool, 10_000)) == sum(run.produced for run in runs.values())


def test_one_listener_hears_of_each_change(path: Path) -> None:
    heard = threading.Event()
    with _spool(path) as spool:
        with spool.listening(heard.set):
            spool.append(b"x", 1)
            assert heard.wait(DEADLINE_S)
            assert _seqs(spool) == [(RUN, 0)]
        heard.clear()
        spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        assert not heard.is_set()


def test_a_chunk_that_can_never_be_sent_is_counted_as_dropped(path: Path) -> None:
    with _spool(path) as spool:
        spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        spool.give_up(RUN, 0)
        assert spool.flush(DEADLINE_S)
        assert _ledger(spool) == RunLedger(RUN, 1, Ranges(), Ranges.of([0]))
        assert spool.size_bytes == 0


@given(st.sets(st.integers(0, 300)), st.integers(1, 20))
def test_joined_spans_cover_all_they_did_and_are_few(members: set[int], limit: int) -> None:
    ranges = Ranges.of(members)
    joined = coalesce(ranges, limit)
    assert len(joined.spans) <= limit
    assert not ranges.difference(joined)
    if len(ranges.spans) <= limit:
        assert joined == ranges


def test_severities_of_faults_are_errors(path: Path) -> None:
    events = _events()
    path.write_bytes(b"garbage" * 1000)
    with _spool(path, events=events):
        pass
    assert [event.severity for event in events.take()] == [pb.SEVERITY_ERROR]


def test_a_ledger_row_that_cannot_be_read_is_damage_and_not_the_end(path: Path) -> None:
    with _spool(path) as spool:
        spool.append(b"body", 1)
        assert spool.flush(DEADLINE_S)
    db = sqlite3.connect(path)
    db.execute("UPDATE runs SET dropped = '[[1,2'")
    db.commit()
    db.close()
    events = _events(_run(2))
    with _spool(path, _run(2), events=events) as spool:
        assert spool.append(b"another", 1) == 0
        assert spool.flush(DEADLINE_S)
    assert [event.name for event in events.take()] == ["spool_damaged"]
