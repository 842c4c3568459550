from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from old_journals import write_old_journal
from strategies import cartpole_spec, make_chunk

from cloud_learner.config import JournalConfig
from cloud_learner.journal.audit import Decided, Disposition, RunKey, RunReport
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.reader import JournalReader
from cloud_learner.journal.records import Entry, JournalTotals
from cloud_learner.journal.segments import Segments, name_of
from cloud_learner.training.cursor import Cursor
from shoal.envelope import ChunkKey
from shoal.errors import JournalError
from shoal.ranges import Ranges
from shoal.trajectory import encode_chunk

RUN = RunKey("pi-1", bytes(16))
START = Cursor(0, Ranges())
CHUNK = make_chunk(cartpole_spec())


def entry(
    seq: int,
    disposition: Disposition = Disposition.TRAINED,
    *,
    body: bytes = b"body",
    run: RunKey = RUN,
) -> Entry:
    key = ChunkKey(run.device_id, run.run_id, seq)
    return Entry(key, disposition, body, policy_version=3, transitions=8, episodes=1)


def opened(path: Path, *, retain_bytes: int = 1 << 30, max_file_bytes: int = 0) -> Journal:
    return Journal(path / "journal.db", JournalConfig(retain_bytes, max_file_bytes))


def fill(journal: Journal) -> int:
    """Appends until the disk is full; returns how many went in."""
    for seq in range(1000):
        try:
            journal.append_many([entry(seq, body=bytes(8000))])
        except JournalError:
            return seq
    raise AssertionError("the journal never filled up")


def test_gives_each_new_chunk_a_rising_position_and_each_known_one_none(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        assert journal.append_many([entry(0), entry(2), entry(0)]) == [1, 2, None]
        assert journal.append_many([entry(2), entry(1)]) == [None, 3]
        assert journal.decided(RUN) == Decided(trained=Ranges.upto(3))


def test_what_was_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append_many(
            [entry(0), entry(1, Disposition.EXPIRED), entry(2, Disposition.REJECTED, body=b"")]
        )
        before = journal.totals
    with opened(tmp_path) as journal:
        assert journal.decided(RUN) == Decided(Ranges.of([0]), Ranges.of([1]), Ranges.of([2]))
        assert journal.totals == before
        assert journal.append_many([entry(1), entry(3)]) == [None, 4]


def test_a_chunk_that_expires_later_still_counts_once(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append_many([entry(0), entry(1)])
        journal.redispose([2], Disposition.EXPIRED)
        assert journal.decided(RUN) == Decided(Ranges.of([0]), Ranges.of([1]))
    with opened(tmp_path) as journal:
        assert journal.decided(RUN) == Decided(Ranges.of([0]), Ranges.of([1]))


def test_resuming_reads_exactly_what_a_cursor_does_not_cover(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append_many([entry(seq, body=b"x") for seq in range(600)])
        cursor = Cursor(590, Ranges.of([7, 300]))
        found = [record.position for record in journal.since(cursor)]
        assert found == [7, 300, *range(591, 601)]
        assert [record.key.seq for record in journal.newest_first()] == list(range(599, -1, -1))


def test_rejected_chunks_are_decided_and_have_nothing_to_resume_from(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append_many([entry(0, Disposition.REJECTED, body=b"")])
        assert list(journal.since(START)) == []
        assert journal.decided(RUN).contains(0)


def test_retention_deletes_bodies_and_never_keys_or_sums(tmp_path: Path) -> None:
    with opened(tmp_path, retain_bytes=10_000) as journal:
        journal.append_many([entry(seq, body=bytes(1000)) for seq in range(40)])
        totals = journal.totals
        assert journal.prune(Cursor(35, Ranges.of([2]))) > 0
        left = [record.position for record in journal.newest_first()]
        assert left[-1] == 3 - 1
        assert set(range(36, 41)) <= set(left)
        assert journal.totals == totals
        assert journal.append_many([entry(0), entry(40)]) == [None, 41]
    with opened(tmp_path) as journal:
        assert journal.decided(RUN).trained == Ranges.upto(41)
        assert journal.totals == JournalTotals(41 * 8, 41, 40_004)


def test_retention_keeps_what_no_checkpoint_covers_whatever_its_size(tmp_path: Path) -> None:
    with opened(tmp_path, retain_bytes=0) as journal:
        journal.append_many([entry(seq, body=bytes(1000)) for seq in range(9)])
        assert journal.prune(START) == 0
        assert journal.prune(Cursor(9, Ranges())) == 9
        assert journal.decided(RUN).trained == Ranges.upto(9)


def test_retention_keeps_what_a_replay_of_transitions_holds_however_much(tmp_path: Path) -> None:
    many = 700  # several pages
    with opened(tmp_path, retain_bytes=0) as journal:
        journal.append_many([entry(seq, body=bytes(10)) for seq in range(many)])
        held = {*range(1, 301), 450}
        assert journal.prune(Cursor(many, Ranges()), held) == many - len(held)
        assert {record.position for record in journal.newest_first()} == held
        assert journal.excess_bytes > 0
        assert journal.prune(Cursor(many, Ranges())) == len(held)
        assert journal.excess_bytes == 0


def test_positions_are_never_used_twice_even_after_everything_was_pruned(tmp_path: Path) -> None:
    with opened(tmp_path, retain_bytes=0) as journal:
        journal.append_many([entry(0), entry(1)])
        journal.prune(Cursor(2, Ranges()))
    with opened(tmp_path) as journal:
        assert journal.append_many([entry(2)]) == [3]


def test_a_full_disk_decides_nothing_and_the_journal_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, retain_bytes=0, max_file_bytes=262_144) as journal:
        appended = fill(journal)
        assert journal.decided(RUN).trained == Ranges.upto(appended)
        with pytest.raises(JournalError, match=r"cannot append to the journal .* full"):
            journal.append_many([entry(appended, body=bytes(8000))])
        journal.prune(Cursor(appended, Ranges()))
        assert journal.append_many([entry(appended, body=bytes(8000))]) == [appended + 1]


def test_reports_of_devices_outlive_a_restart(tmp_path: Path) -> None:
    report = RunReport(9, Ranges.of([7, 8]), Ranges.of([0]), Ranges.of([1, 2]))
    with opened(tmp_path) as journal:
        journal.save_reports({RUN: RunReport(1, Ranges(), Ranges())})
        journal.save_reports({RUN: report})
    with opened(tmp_path) as journal:
        assert journal.reports() == {RUN: report}


@pytest.mark.parametrize("version", [1, 2])
def test_goes_on_with_the_journal_of_an_earlier_version(version: int, tmp_path: Path) -> None:
    old = [entry(0), entry(1, Disposition.EXPIRED), entry(2, Disposition.REJECTED, body=b"")]
    write_old_journal(tmp_path / "journal.db", old, version=version)
    with opened(tmp_path) as journal:
        assert journal.decided(RUN) == Decided(Ranges.of([0]), Ranges.of([1]), Ranges.of([2]))
        assert [bytes(record.body) for record in journal.since(START)] == [b"body", b"body"]
        assert journal.append_many([entry(1), entry(3, body=b"new")]) == [None, 4]
        journal.save_reports({RUN: RunReport(9, Ranges(), Ranges(), Ranges.of([3]))})
    with opened(tmp_path, retain_bytes=0) as journal:
        bodies = [bytes(record.body) for record in journal.since(START)]
        assert bodies == [b"body", b"body", b"new"]
        assert journal.totals == JournalTotals(4 * 8, 4, 11)
        assert journal.reports()[RUN].expired == Ranges.of([3])
        assert journal.prune(Cursor(3, Ranges())) == 3
        assert [record.position for record in journal.newest_first()] == [4]


@pytest.mark.parametrize("version", [1, 2])
def test_reads_the_journal_of_an_earlier_version_without_changing_it(
    version: int, tmp_path: Path
) -> None:
    path = tmp_path / "journal.db"
    write_old_journal(path, [entry(0, body=encode_chunk(CHUNK))], version=version)
    before = path.read_bytes()
    with JournalReader(path) as reader:
        (run,) = reader.runs()
        (item,) = reader.chunks(run.key)
        assert item.chunk.rewards.tobytes() == CHUNK.rewards.tobytes()
    assert path.read_bytes() == before


def segments_of(path: Path) -> list[Path]:
    return sorted((path / "journal.db-segments").iterdir())


def test_a_segment_goes_when_the_last_chunk_in_it_does(tmp_path: Path) -> None:
    with opened(tmp_path, retain_bytes=0) as journal:
        journal._segments._segment_bytes = 1000
        for seq in range(6):
            journal.append_many([entry(seq, body=bytes(600))])
        assert len(segments_of(tmp_path)) == 3
        journal.prune(Cursor(3, Ranges()))
        assert [path.name for path in segments_of(tmp_path)] == [name_of(2), name_of(3)]
        assert [record.position for record in journal.newest_first()] == [6, 5, 4]
        journal.prune(Cursor(6, Ranges()))
        assert segments_of(tmp_path) == []
        assert journal.append_many([entry(7)]) == [7]
        assert [bytes(record.body) for record in journal.newest_first()] == [b"body"]


def test_a_segment_that_a_crash_kept_from_being_deleted_goes_with_the_next_start(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, retain_bytes=0) as journal:
        journal.append_many([entry(0)])
        (segment,) = segments_of(tmp_path)
        content = segment.read_bytes()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Segments, "delete", lambda *_: frozenset())
            journal.prune(Cursor(1, Ranges()))
    assert segment.read_bytes() == content
    with opened(tmp_path):
        assert not segment.exists()


def test_segments_that_the_index_never_named_are_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append_many([entry(0)])
    for path in tmp_path.glob("journal.db*"):
        if path.is_file():
            path.unlink()
    (other,) = segments_of(tmp_path)
    with opened(tmp_path, retain_bytes=0) as journal:
        journal.append_many([entry(0)])
        journal.prune(Cursor(1, Ranges()))
    assert segments_of(tmp_path) == [other]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("happens", [damage, lambda path: os.truncate(path, 20), Path.unlink])
def test_a_body_that_the_disk_damaged_is_never_served_and_the_others_are(
    happens: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as journal:
        journal.append_many([entry(0, body=b"damaged")])
        journal._segments.close()
        journal.append_many([entry(1)])
    happens(segments_of(tmp_path)[0])
    with opened(tmp_path) as journal:
        assert [bytes(record.body) for record in journal.since(START)] == [b"", b"body"]
        assert journal.decided(RUN).trained == Ranges.upto(2)
    assert "segment_damaged" in caplog.text
    with (
        JournalReader(tmp_path / "journal.db") as reader,
        pytest.raises(JournalError, match=r"chunk 0 of pi-1 .* is damaged"),
    ):
        list(reader.chunks(RUN))


def test_a_reader_skips_what_the_learner_deletes_while_it_reads(tmp_path: Path) -> None:
    with opened(tmp_path, retain_bytes=0) as journal:
        for seq in range(3):
            journal.append_many([entry(seq, body=encode_chunk(CHUNK))])
            journal._segments.close()  # each in a segment of its own
        with JournalReader(tmp_path / "journal.db") as reader:
            reading = reader.chunks(RUN)
            assert next(reading).seq == 0
            journal.prune(Cursor(2, Ranges()))
            assert [item.seq for item in reading] == [2]


def test_refuses_a_file_that_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(JournalError, match=r"journal\.db"):
        opened(tmp_path)


def test_refuses_a_journal_of_a_newer_program(tmp_path: Path) -> None:
    opened(tmp_path).__exit__(None, None, None)
    connection = sqlite3.connect(tmp_path / "journal.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(JournalError, match="schema 99"):
        opened(tmp_path)


RUNS = [RunKey(device, bytes([n]) * 16) for device in ("pi-1", "pi-2") for n in (1, 2)]
ENTRIES = st.builds(
    entry,
    st.integers(0, 12),
    st.sampled_from(Disposition),
    body=st.just(bytes(300)),
    run=st.sampled_from(RUNS),
)


@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.one_of(
            st.lists(ENTRIES, max_size=8),
            st.tuples(st.lists(st.integers(1, 40), max_size=5), st.sampled_from(Disposition)),
            st.integers(0, 40),
            st.just("restart"),
        ),
        max_size=12,
    )
)
def test_each_key_is_decided_once_through_any_history(
    tmp_path_factory: pytest.TempPathFactory, acts: list[object]
) -> None:
    path = tmp_path_factory.mktemp("journal")
    expected: dict[ChunkKey, Disposition] = {}
    by_position: dict[int, ChunkKey] = {}
    pruned_to = 0
    journal = opened(path, retain_bytes=500)
    for act in acts:
        match act:
            case [*entries] if all(isinstance(each, Entry) for each in entries):
                _append(
                    journal, [e for e in entries if isinstance(e, Entry)], expected, by_position
                )
            case (list(positions), Disposition() as disposition):
                live = [p for p in positions if p in by_position and p > pruned_to]
                journal.redispose(live, disposition)
                expected.update({by_position[p]: disposition for p in live})
            case int(position):
                pruned_to = max(pruned_to, position)
                journal.prune(Cursor(position, Ranges()))
            case _:
                journal.__exit__(None, None, None)
                journal = opened(path, retain_bytes=500)
        for run in RUNS:
            decided = journal.decided(run)
            for disposition in Disposition:
                seqs = [
                    key.seq
                    for key, fate in expected.items()
                    if RunKey(key.device_id, key.run_id) == run and fate is disposition
                ]
                assert decided.of(disposition) == Ranges.of(seqs)
        assert journal.totals.transitions == 8 * len(expected)
    journal.__exit__(None, None, None)


def test_a_damaged_journal_says_what_to_do_and_what_it_costs(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a database, whatever it was before" * 100)
    with pytest.raises(JournalError, match=r"move .*journal\.db .* aside and resume") as caught:
        opened(tmp_path)
    assert "may be trained again" in str(caught.value)
    assert "tries again" not in str(caught.value)


def test_the_last_position_outlives_pruning_and_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, retain_bytes=0) as journal:
        assert journal.last_position == 0
        journal.append_many([entry(0), entry(1)])
        journal.prune(Cursor(2, Ranges()))
    with opened(tmp_path) as journal:
        assert journal.last_position == 2


def _append(
    journal: Journal,
    entries: Sequence[Entry],
    expected: dict[ChunkKey, Disposition],
    by_position: dict[int, ChunkKey],
) -> None:
    for each, position in zip(entries, journal.append_many(entries), strict=True):
        assert (position is None) == (each.key in expected)
        if position is not None:
            assert position not in by_position
            expected[each.key] = each.disposition
            by_position[position] = each.key
