"""The spool on disks that are full, broken, damaged or taken."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spools import DEADLINE_S, RUN, events_of, ledger_of, open_spool, run_id_of, seqs_of

from edge_agent.spool.run_ledger import RunLedger
from edge_agent.spool.spool import MAX_QUEUED_BYTES, Spool
from shoal.errors import SpoolError
from shoal.ranges import Ranges
from shoal.v1 import device_pb2 as pb


def _fault(spool: Spool) -> str | None:
    return spool.fault


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.sqlite"


def test_a_slow_disk_bounds_the_memory_and_counts_what_it_costs(path: Path) -> None:
    body = bytes(MAX_QUEUED_BYTES // 4)
    with open_spool(path, max_bytes=2**40) as spool:
        with spool._lock:  # the writer cannot take anything meanwhile
            for _ in range(10):
                spool.append(body, 1)
            assert spool._queued_bytes <= MAX_QUEUED_BYTES
        assert spool.flush(DEADLINE_S)
        run = ledger_of(spool)
        assert run.produced == 10
        assert run.dropped == Ranges.upto(6)
        assert run.spooled == Ranges.from_spans([(6, 10)])


def test_a_second_agent_on_the_same_spool_is_told_so(path: Path) -> None:
    with (
        open_spool(path),
        pytest.raises(SpoolError, match=r"another agent uses .*spool\.sqlite"),
        open_spool(path, run_id_of(1)),
    ):
        pass


def test_a_directory_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SpoolError, match="state_dir"),
        open_spool(tmp_path / "file" / "spool.sqlite"),
    ):
        pass


def test_a_spool_of_a_newer_agent_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SpoolError, match="update the agent"), open_spool(path):
        pass


def test_a_file_that_is_no_database_is_kept_aside(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)
    events = events_of()
    with open_spool(path, events=events) as spool:
        spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        assert seqs_of(spool) == [(RUN, 0)]
    assert [event.name for event in events.take()] == ["spool_damaged"]
    assert path.with_name("spool.sqlite.damaged").read_bytes().startswith(b"garbage")


def test_a_full_disk_drops_the_new_counts_it_and_recovers(path: Path) -> None:
    events = events_of()
    with open_spool(path, max_bytes=2**30, events=events) as spool:
        spool.append(bytes(1000), 1)
        assert spool.flush(DEADLINE_S)
        assert spool._file._db is not None
        pages = spool._file._db.execute("PRAGMA page_count").fetchone()[0]
        spool._file._db.execute(f"PRAGMA max_page_count = {pages}")
        for _ in range(3):
            spool.append(bytes(100_000), 1)
            assert spool.flush(DEADLINE_S)
        assert ledger_of(spool) == RunLedger(RUN, 4, Ranges.of([0]), Ranges.of([1, 2, 3]))
        assert _fault(spool) is not None
        spool._file._db.execute(f"PRAGMA max_page_count = {2**30}")
        spool.append(bytes(100_000), 1)
        assert spool.flush(DEADLINE_S)
        assert _fault(spool) is None
        assert ledger_of(spool).spooled == Ranges.of([0, 4])
    assert [event.name for event in events.take()] == ["spool_fault", "spool_recovered"]
    with open_spool(path, run_id_of(1)) as spool:
        assert ledger_of(spool) == RunLedger(RUN, 5, Ranges.of([0, 4]), Ranges.of([1, 2, 3]))


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
    events = events_of()
    with open_spool(path, max_bytes=2**30, events=events) as spool:
        spool.append(bytes(1000), 1)
        assert spool.flush(DEADLINE_S)
        small_files(200_000)
        for _ in range(20):
            spool.append(os.urandom(60_000), 1)
            assert spool.flush(DEADLINE_S)
        run = ledger_of(spool)
        assert run.produced == 21
        assert run.dropped
        assert run.spooled.union(run.dropped) == Ranges.upto(21)
        small_files(resource.RLIM_INFINITY)
        assert spool.append(bytes(1000), 1) == 21
        assert spool.flush(DEADLINE_S)
        assert _fault(spool) is None
        assert ledger_of(spool).spooled.contains(21)
        assert len(seqs_of(spool)) == ledger_of(spool).spooled.count()
    assert {event.name for event in events.take()} >= {"spool_fault", "spool_recovered"}


def test_acknowledged_chunks_leave_a_full_disk_once_it_has_room(
    path: Path, small_files: Callable[[int], None]
) -> None:
    with open_spool(path, max_bytes=2**30) as spool:
        for _ in range(4):
            spool.append(bytes(1000), 1)
        assert spool.flush(DEADLINE_S)
        small_files(1)
        assert spool.discard(RUN, Ranges.of([0, 1])) == 2
        assert spool.flush(DEADLINE_S)
        assert _fault(spool) is not None
        assert [seq for _, seq in seqs_of(spool)] == [2, 3]
        small_files(resource.RLIM_INFINITY)
        spool.append(bytes(1000), 1)
        assert spool.flush(DEADLINE_S)
        assert spool.size_bytes == 3000


def test_a_file_damaged_in_mid_run_costs_its_chunks_and_nothing_else(path: Path) -> None:
    events = events_of()
    with open_spool(path, events=events) as spool:
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
        run = ledger_of(spool)
        assert run.spooled.union(run.dropped) == Ranges.upto(51)
        spool.append(b"later", 1)
        assert spool.flush(DEADLINE_S)
        assert ledger_of(spool).spooled.contains(51)
    assert "spool_damaged" in [event.name for event in events.take()]


_WRITER = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    from edge_agent.events import Events
    from edge_agent.spool.spool import Spool
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
    with open_spool(path) as spool:
        runs = {run.run_id: run for run in spool.ledger()}
        for run_id, produced in shown.items():
            assert runs[run_id].produced >= produced > 0
            assert runs[run_id].spooled == Ranges.upto(runs[run_id].produced)
        assert len(seqs_of(spool, 10_000)) == sum(run.produced for run in runs.values())


def test_a_chunk_that_can_never_be_sent_is_counted_as_dropped(path: Path) -> None:
    with open_spool(path) as spool:
        spool.append(b"x", 1)
        assert spool.flush(DEADLINE_S)
        spool.give_up(RUN, 0)
        assert spool.flush(DEADLINE_S)
        assert ledger_of(spool) == RunLedger(RUN, 1, Ranges(), Ranges.of([0]))
        assert spool.size_bytes == 0


def test_severities_of_faults_are_errors(path: Path) -> None:
    events = events_of()
    path.write_bytes(b"garbage" * 1000)
    with open_spool(path, events=events):
        pass
    assert [event.severity for event in events.take()] == [pb.SEVERITY_ERROR]


def test_a_ledger_row_that_cannot_be_read_is_damage_and_not_the_end(path: Path) -> None:
    with open_spool(path) as spool:
        spool.append(b"body", 1)
        assert spool.flush(DEADLINE_S)
    db = sqlite3.connect(path)
    db.execute("UPDATE runs SET dropped = '[[1,2'")
    db.commit()
    db.close()
    events = events_of(run_id_of(2))
    with open_spool(path, run_id_of(2), events=events) as spool:
        assert spool.append(b"another", 1) == 0
        assert spool.flush(DEADLINE_S)
    assert [event.name for event in events.take()] == ["spool_damaged"]
