"""Kills a learner's journal before each step that reaches the disk, and says what came of it.

    python tests/journal_faults.py DIRECTORY OPERATION

A line of JSON for each case: the step, whether the power was cut, and what was wrong afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from old_journals import write_old_journal  # noqa: E402
from policy_faults import forked  # noqa: E402

from cloud_learner.config import JournalConfig  # noqa: E402
from cloud_learner.journal.audit import Disposition, RunKey  # noqa: E402
from cloud_learner.journal.journal import Journal  # noqa: E402
from cloud_learner.journal.reader import JournalReader  # noqa: E402
from cloud_learner.journal.records import Entry  # noqa: E402
from cloud_learner.journal.segments import directory_of  # noqa: E402
from cloud_learner.training.cursor import Cursor  # noqa: E402
from shoal.envelope import ChunkKey  # noqa: E402
from shoal.errors import JournalError  # noqa: E402
from shoal.ranges import Ranges  # noqa: E402

RUN = bytes(range(16))
SEGMENT_BYTES = 700
"""Two chunks fill one."""
COUNT = 12
STEPS = ("open", "pwritev", "fsync", "ftruncate", "unlink", "mkdir")


def entry(seq: int) -> Entry:
    body = bytes([seq + 1]) * 400
    return Entry(ChunkKey("pi-1", RUN, seq), Disposition.TRAINED, body, transitions=8)


def opened(directory: Path, *, retain_bytes: int = 1 << 30) -> Journal:
    journal = Journal(directory / "journal.db", JournalConfig(retain_bytes))
    journal._segments._segment_bytes = SEGMENT_BYTES
    return journal


@dataclass
class Disk:
    """Hooks what reaches the disk; a power cut takes what was never synced."""

    at: int | None
    power_cut: bool
    steps: list[str] = field(default_factory=list)
    paths: dict[int, Path] = field(default_factory=dict)
    synced: dict[Path, int] = field(default_factory=dict)
    new: set[Path] = field(default_factory=set)
    gone: dict[Path, bytes] = field(default_factory=dict)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        before = {name: getattr(os, name) for name in STEPS}
        connect = sqlite3.connect
        for name, call in before.items():
            setattr(os, name, partial(self._hooked, name, call))

        def traced(*args: object, **more: object) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **more)  # type: ignore[call-overload]
            connection.set_trace_callback(lambda statement: self._step(statement.split()[0]))
            return connection

        sqlite3.connect = traced  # type: ignore[assignment]
        try:
            yield
        finally:
            sqlite3.connect = connect
            for name, call in before.items():
                setattr(os, name, call)

    def _hooked(
        self, name: str, call: Callable[..., object], *args: object, **more: object
    ) -> object:
        creates = name == "open" and int(str(args[1])) & os.O_CREAT
        if name != "open" or creates:
            torn = partial(call, args[0], [b"torn"], args[2]) if name == "pwritev" else None
            self._step(name, torn)
        if name == "unlink":
            path = Path(str(args[0]))
            with contextlib.suppress(OSError):
                self.gone[path] = path.read_bytes()
        result = call(*args, **more)
        if name == "open":
            self.paths[int(str(result))] = Path(str(args[0]))
            if creates:
                self.new.add(Path(str(args[0])))
                self.synced[Path(str(args[0]))] = 0
        if name == "fsync":
            self._note_sync(self.paths[int(str(args[0]))])
        return result

    def _note_sync(self, path: Path) -> None:
        if path.is_dir():
            self.new = {each for each in self.new if each.parent != path}
            self.gone = {each: was for each, was in self.gone.items() if each.parent != path}
        else:
            self.synced[path] = path.stat().st_size

    def _step(self, name: str, torn: Callable[[], object] | None = None) -> None:
        if self.at == len(self.steps):
            self.at = None
            if torn is not None:
                torn()
            if self.power_cut:
                self._cut()
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps.append(name)

    def _cut(self) -> None:
        for path, size in self.synced.items():
            if path.exists():
                there = path.stat().st_size
                os.truncate(path, size)
                os.truncate(path, size + (there - size) // 2)  # zeros
        for path in self.new:
            path.unlink(missing_ok=True)
        for path, content in self.gone.items():
            path.write_bytes(content)


Told = Callable[[Sequence[int]], None]


def append(*groups: Sequence[int]) -> Callable[[Path, Told], None]:
    def do(directory: Path, told: Told) -> None:
        with opened(directory) as journal:
            for group in groups:
                journal.append_many([entry(seq) for seq in group])
                told(group)

    return do


def refused_and_again(directory: Path, told: Told) -> None:
    """The index refuses once: what was written is tried again, and then something else is."""
    with opened(directory) as journal:
        group = [entry(3), entry(4)]
        journal._index._connection.execute("PRAGMA query_only = ON")
        with contextlib.suppress(JournalError):
            journal.append_many(group)
        journal._index._connection.execute("PRAGMA query_only = OFF")
        journal.append_many(group)
        told([3, 4])
        journal.append_many([entry(5)])
        told([5])


def prune(upto: int, *, retain_bytes: int) -> Callable[[Path, Told], None]:
    def do(directory: Path, told: Told) -> None:
        with opened(directory, retain_bytes=retain_bytes) as journal:
            journal.prune(Cursor(upto, Ranges()))
            journal.append_many([entry(9)])
            told([9])

    return do


def redispose(directory: Path, told: Told) -> None:
    with opened(directory) as journal:
        journal.redispose([2, 3], Disposition.EXPIRED)
        journal.append_many([entry(9)])
        told([9])


def old(directory: Path, _: Told) -> None:
    entries = [entry(seq) for seq in range(3)]
    write_old_journal(directory / "journal.db", entries, version=1)


def nothing(_: Path, __: Told) -> None:
    """There is no journal yet."""


@dataclass(frozen=True)
class Operation:
    """What was done before, in peace; what is interrupted; and the chunks that may have left."""

    before: Callable[[Path, Told], None]
    do: Callable[[Path, Told], None]
    there: tuple[int, ...]
    may_leave: tuple[int, ...] = ()


OPERATIONS = {
    "first": Operation(nothing, append([0, 1, 2]), ()),
    "groups": Operation(append([0, 1]), append([2], [3, 2], [4, 5], [6]), (0, 1)),
    "refused": Operation(append([0, 1, 2]), refused_and_again, (0, 1, 2)),
    "prune": Operation(
        append([0, 1], [2, 3], [4, 5]),
        prune(5, retain_bytes=1500),
        tuple(range(6)),
        (0, 1, 2, 3, 4),
    ),
    "prune_all": Operation(
        append([0, 1], [2, 3]), prune(4, retain_bytes=0), tuple(range(4)), (0, 1, 2, 3)
    ),
    "redispose": Operation(append([0, 1], [2, 3]), redispose, tuple(range(4))),
    "old": Operation(old, append([3], [4, 5]), (0, 1, 2)),
    "prune_old": Operation(old, prune(2, retain_bytes=0), (0, 1, 2), (0, 1)),
}


def interrupt(
    directory: Path, operation: Operation, at: int, told: int, *, power_cut: bool
) -> None:
    with Disk(at, power_cut).watching():
        operation.do(directory, lambda seqs: _tell(told, seqs))


def _tell(pipe: int, seqs: Sequence[int]) -> None:
    os.write(pipe, bytes(seqs))


def flaws(directory: Path, operation: Operation, acked: bytes) -> list[str]:
    """What a learner that starts again would hold against its journal."""
    found: list[str] = []
    bodies = {seq: entry(seq).body for seq in range(COUNT)}
    run = RunKey("pi-1", RUN)
    with opened(directory) as journal:
        settled = set(journal.decided(run).settled)
        found += [f"{seq} was acknowledged and is lost" for seq in acked if seq not in settled]
        found += [f"{seq} was there and is lost" for seq in operation.there if seq not in settled]
        records = list(journal.newest_first())
        held = {record.key.seq for record in records}
        found += [
            f"the body of {record.key.seq} is wrong"
            for record in records
            if bytes(record.body) != bodies[record.key.seq]
        ]
        found += [
            f"the body of {seq} is gone" for seq in settled - held if seq not in operation.may_leave
        ]
        again = journal.append_many([entry(seq) for seq in range(COUNT)])
        found += [
            f"{seq} is counted twice, or never"
            for seq, position in enumerate(again)
            if (position is None) != (seq in settled)
        ]
    with opened(directory, retain_bytes=0) as journal:
        if journal.totals.transitions != COUNT * 8:
            found.append(f"{journal.totals.transitions} transitions")
        records = list(journal.newest_first())
        if len({record.position for record in records}) != len(records):
            found.append("a position was used twice")
        with JournalReader(directory / "journal.db") as reader:
            held |= set(range(COUNT)) - settled
            seqs = _seqs_read(reader, run)
            if seqs != held:
                found.append(f"the reader sees {sorted(seqs)}, not {sorted(held)}")
        journal.prune(Cursor(journal.last_position, Ranges()))
        left = list(directory_of(directory / "journal.db").iterdir())
        if len(left) > 1:  # one that was begun when it ended, and never named
            found.append(f"{len(left)} segments are left of an empty journal")
    return found


def _seqs_read(reader: JournalReader, run: RunKey) -> set[int]:
    """The chunks whose bodies the reader finds as they were; they are not opened."""
    rows = reader._page(run, -1)
    return {row.seq for row in rows if reader._body(run, row) == entry(row.seq).body}


def table(directory: Path, operation: Operation) -> Iterator[dict[str, object]]:
    """Every case of an operation."""
    original = directory / "before"
    original.mkdir()
    assert forked(lambda: operation.before(original, lambda _: None)) == 0
    for power_cut in (False, True):
        for step in range(1000):
            case = directory / f"case-{step}-{power_cut}"
            shutil.copytree(original, case)
            ours, theirs = os.pipe()
            work = partial(interrupt, case, operation, step, theirs, power_cut=power_cut)
            ended = forked(work)
            os.close(theirs)
            with os.fdopen(ours, "rb") as pipe:
                acked = pipe.read()
            assert ended in {0, -signal.SIGKILL}, ended
            yield {
                "step": step,
                "power_cut": power_cut,
                "killed": ended != 0,
                "flaws": flaws(case, operation, acked),
            }
            shutil.rmtree(case)
            if ended == 0:
                break


def main(arguments: list[str]) -> int:
    for row in table(Path(arguments[0]), OPERATIONS[arguments[1]]):
        sys.stdout.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
