"""Spools of one device and what they hold."""

from __future__ import annotations

from pathlib import Path

from edge_agent.events import Events
from edge_agent.spool.run_ledger import RunLedger
from edge_agent.spool.spool import Spool

RUN = bytes(16)
DEADLINE_S = 30.0


def run_id_of(n: int) -> bytes:
    return n.to_bytes(16, "big")


def events_of(run_id: bytes = RUN) -> Events:
    return Events("pi-1", run_id, clock=lambda: 0.0)


def open_spool(
    path: Path, run_id: bytes = RUN, max_bytes: int = 2**20, events: Events | None = None
) -> Spool:
    return Spool(path, max_bytes=max_bytes, run_id=run_id, events=events or events_of(run_id))


def seqs_of(spool: Spool, limit: int = 1000) -> list[tuple[bytes, int]]:
    return [(chunk.run_id, chunk.seq) for chunk in spool.pending(limit, frozenset())]


def ledger_of(spool: Spool, run_id: bytes = RUN) -> RunLedger:
    return next(run for run in spool.ledger() if run.run_id == run_id)
