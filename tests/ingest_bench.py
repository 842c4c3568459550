"""An ingest with everything around it real but the broker, and chunks for it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from strategies import DIGEST, cartpole_spec, make_chunk

from cloud_learner.config import IngestConfig, JournalConfig
from cloud_learner.fleet.fleet import Fleet, LearnerFacts
from cloud_learner.journal.journal import Journal
from cloud_learner.training.replay import Replay
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uplink.admission import KnownVersion, KnownVersions, Standard
from cloud_learner.uplink.inbox import Inbox
from cloud_learner.uplink.ingest import Ingest, IngestParts
from shoal.packing import Packing
from shoal.trajectory import encode_chunk, encode_columns

TWIN = bytes(range(32, 64))
SPEC = cartpole_spec()
CHUNK = replace(make_chunk(SPEC), policy_version=1)
GOOD = encode_chunk(CHUNK)
COLUMNS = encode_columns(CHUNK, Packing())
FOREIGN = encode_chunk(replace(CHUNK, spec_fingerprint=bytes(32)))


def standard(*, updates_now: int = 0, max_lag: int = 10) -> Standard:
    versions = KnownVersions(lambda _: None, highest=0)
    versions.add(1, KnownVersion(0, DIGEST, (TWIN,)))
    return Standard(SPEC, versions, updates_now, max_lag)


@dataclass
class Bench:
    """An ingest with everything around it real but the broker."""

    inbox: Inbox
    journal: Journal
    replay: Replay
    fleet: Fleet
    stats: TrainingStats
    counters: Counter[str]
    acks: list[tuple[str, bytes]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    standard: Standard | None = field(default_factory=standard)

    def publish_ack(self, device_id: str, payload: bytes) -> None:
        self.acks.append((device_id, payload))
        self.changed.set()


@asynccontextmanager
async def ingesting(
    path: Path, *, max_file_bytes: int = 0, max_batch_messages: int = 256
) -> AsyncIterator[Bench]:
    counters: Counter[str] = Counter()
    with Journal(path / "journal.db", JournalConfig(0, max_file_bytes)) as journal:
        replay, stats = Replay(10_000, batch_steps=2048), TrainingStats()
        facts = LearnerFacts(
            decided=journal.decided,
            updates=lambda: 0,
            updates_of=lambda _: None,
            replay_steps=lambda: replay.steps,
            counters=counters,
        )
        bench = Bench(Inbox.of(64), journal, replay, Fleet(facts, stats), stats, counters)
        ingest = Ingest(
            IngestParts(bench.inbox, journal, replay, bench.fleet, stats, counters),
            IngestConfig(ack_repeat_s=0.01, max_batch_messages=max_batch_messages),
            standard=lambda: bench.standard,
            publish_ack=bench.publish_ack,
            rng=random.Random(0),
        )
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(ingest.serve_chunks()),
                group.create_task(ingest.serve_commits()),
                group.create_task(ingest.serve_reports()),
                group.create_task(ingest.repeat_acks()),
            ]
            yield bench
            for task in tasks:
                task.cancel()


def events_of(bench: Bench, device_id: str) -> list[str]:
    described = bench.fleet.describe(device_id)
    return [] if described is None else [known.event.name for known in described.events]
