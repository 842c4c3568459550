"""What goes into the journal and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_learner.journal.audit import Disposition
from shoal.envelope import ChunkKey


@dataclass(frozen=True, slots=True)
class Entry:
    """A decision about one chunk, to be made durable.

    Attributes:
        key: which chunk.
        disposition: what was decided.
        body: the chunk as it came; empty for a rejected one.
        frame: the framed envelope that came with ``body`` in it; empty: one is made for it.
        policy_version: the version that acted; 0 when unknown.
        transitions: T x N; 0 for a rejected one.
        episodes: how many ended in it.
        reason: why it expired or was rejected: a slug.
    """

    key: ChunkKey
    disposition: Disposition
    body: bytes | memoryview = b""
    policy_version: int = 0
    transitions: int = 0
    episodes: int = 0
    reason: str = ""
    frame: bytes = b""


@dataclass(frozen=True, slots=True)
class Record:
    """A chunk as the journal holds it; its body is empty when the disk damaged it."""

    position: int
    key: ChunkKey
    disposition: Disposition
    policy_version: int
    body: bytes | memoryview


@dataclass(frozen=True, slots=True)
class JournalTotals:
    """Sums over every chunk ever accepted, pruned ones too."""

    transitions: int = 0
    episodes: int = 0
    body_bytes: int = 0
