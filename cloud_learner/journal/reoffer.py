"""After a restart: what the journal holds and no checkpoint covers goes back into replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from cloud_learner.journal.audit import Disposition
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.records import Record
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted
from cloud_learner.training.stats import RETURN_WINDOW
from cloud_learner.uplink.admission import Standard, Verdict, decide, reject
from shoal.episodes import Episode
from shoal.errors import WireError
from shoal.logs import get_logger
from shoal.trajectory import Chunk, decode_chunk

MAX_CHUNKS_LOOKED_AT: Final = 1024
"""How far back the last episodes are looked for, so that a restart stays quick."""
_log = get_logger("reoffer")


@dataclass(frozen=True, slots=True, eq=False)
class Reoffered:
    """What comes back.

    Attributes:
        admitted: Chunks that the restored weights have not been trained from, oldest first.
        newest: The newest chunk in the journal; None when there is none.
    """

    admitted: tuple[Admitted, ...]
    newest: Chunk | None


def reoffer(journal: Journal, cursor: Cursor, standard: Standard) -> Reoffered:
    """Decides again about every chunk that `cursor` does not cover.

    The updates made from them after the checkpoint died with the process, so training from them
    once more is training from them once. Each keeps counting once in the audit. None that was
    accepted becomes rejected, unless its body is damaged: what no longer fits expires.

    Raises:
        JournalError: The journal cannot be read or written.
    """
    admitted: list[Admitted] = []
    changed: dict[Disposition, list[int]] = defaultdict(list)
    for record in journal.since(cursor):
        chunk = _read(record)
        verdict = (
            decide(chunk, standard)
            if chunk is not None
            else reject("malformed", "its body in the journal is damaged")
        )
        if chunk is not None and verdict.disposition is Disposition.REJECTED:
            # It was good when it came; what it is held against has changed.
            verdict = replace(verdict, disposition=Disposition.EXPIRED)
        if verdict.disposition is not record.disposition:
            changed[verdict.disposition].append(record.position)
            _note_change(record, verdict)
        if chunk is not None and verdict.disposition is Disposition.TRAINED:
            admitted.append(Admitted(record.key, record.position, chunk, verdict.version_updates))
    for disposition, positions in changed.items():
        journal.redispose(positions, disposition)
    newest = next(filter(None, map(_read, journal.newest_first())), None)
    return Reoffered(tuple(admitted), newest)


def refill(journal: Journal, positions: AbstractSet[int]) -> dict[int, Chunk]:
    """Chunks that were in a replay of transitions when it was saved, by their positions.

    They count as trained since they went in, and nothing about that changes here. Those whose
    bodies retention took away, or which are damaged, are missing.

    Raises:
        JournalError: The journal cannot be read.
    """
    found: dict[int, Chunk] = {}
    oldest = min(positions, default=0)
    if positions:
        for record in journal.newest_first():
            if record.position < oldest:
                break
            chunk = _read(record) if record.position in positions else None
            if chunk is not None:
                found[record.position] = chunk
        _log.info("replay_refilled", chunks=len(found), missing=len(positions) - len(found))
    return found


def last_fingerprint(journal: Journal) -> bytes | None:
    """The fingerprint of the spaces of the newest chunk; None when there is none.

    Raises:
        JournalError: The journal cannot be read.
    """
    newest = next(filter(None, map(_read, journal.newest_first())), None)
    return newest.spec_fingerprint if newest is not None else None


def last_episodes(journal: Journal) -> tuple[Episode, ...]:
    """The last episodes that ended in accepted chunks, oldest first.

    Raises:
        JournalError: The journal cannot be read.
    """
    found: list[Episode] = []
    for looked_at, record in enumerate(journal.newest_first(), start=1):
        chunk = _read(record)
        if chunk is not None:
            found.extend(chunk.episodes[::-1])
        if len(found) >= RETURN_WINDOW or looked_at == MAX_CHUNKS_LOOKED_AT:
            break
    return tuple(reversed(found[:RETURN_WINDOW]))


def _read(record: Record) -> Chunk | None:
    try:
        return decode_chunk(record.body)
    except WireError as error:
        _log.error(
            "journal_body_damaged",
            device_id=record.key.device_id,
            run_id=record.key.run_id,
            seq=record.key.seq,
            error=str(error),
        )
        return None


def _note_change(record: Record, verdict: Verdict) -> None:
    _log.info(
        "chunk_decided_again",
        device_id=record.key.device_id,
        run_id=record.key.run_id,
        seq=record.key.seq,
        before=record.disposition.value,
        now=verdict.disposition.value,
        reason=verdict.reason,
    )
