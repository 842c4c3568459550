"""The learner's side of `shoal bench scale`: ingest, journal, fleet and batches, and its audit."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe

from bench.report import median
from bench.stream_learner import Learning, Receiver, cpu_s, learning, rss_bytes

from cloud_learner.training.experience import collate
from cloud_learner.training.source import Moment

LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class LearnerResult:
    """How it went.

    Attributes:
        balanced: Whether the audit balances.
        audit: Its parts, by name.
        settled: By run id, as hexadecimal, how many chunks the journal decided on.
        devices: That the fleet knows.
        counters: What was counted.
        dropped_messages: That found the inbox full.
        cpu_s: Processor time between `go` and `stop`.
        rss_bytes: Its memory at the end.
        rss_before_bytes: Before any device came.
        fold_ms: Of one look at the whole fleet (`Fleet.devices` and `training`), the median.
        fold_ms_max: The longest.
    """

    balanced: bool
    audit: dict[str, int]
    settled: dict[str, int]
    devices: int
    counters: dict[str, int]
    dropped_messages: int
    cpu_s: float
    rss_bytes: int
    rss_before_bytes: int
    fold_ms: float
    fold_ms_max: float


def learn(receiver: Receiver, pipe: Pipe) -> None:
    """Says "ready", counts from "go" to "stop", ends at "end", and answers a `LearnerResult`."""
    pipe.send(asyncio.run(_learn(receiver, pipe)))


async def _learn(receiver: Receiver, pipe: Pipe) -> LearnerResult:
    async with learning(receiver) as learner:
        before, folds = rss_bytes(), list[float]()
        drawing = asyncio.ensure_future(_draw(learner))
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        used_s = cpu_s()
        looking = asyncio.ensure_future(_look(learner, folds))
        await asyncio.to_thread(pipe.recv)
        used_s = cpu_s() - used_s
        looking.cancel()
        await asyncio.to_thread(pipe.recv)
        async with asyncio.timeout(30.0):
            while len(learner.inbox.reports) or len(learner.inbox.chunks):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        drawing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drawing
        total = learner.fleet.audit().total
        parts = ("produced", "trained", "expired", "dropped", "rejected", "in_flight")
        return LearnerResult(
            total.balanced,
            {name: getattr(total, name) for name in parts},
            {
                run.run_id.hex(): decided.settled.count()
                for run, decided in learner.journal.runs().items()
            },
            len(learner.fleet.devices()),
            dict(learner.counters),
            learner.inbox.chunks.dropped + learner.inbox.reports.dropped,
            used_s,
            rss_bytes(),
            before,
            round(median(folds), 2) if folds else 0.0,
            round(max(folds, default=0.0), 2),
        )


async def _look(learner: Learning, folds: list[float]) -> None:
    """What an operator's `shoal top` asks, once a second."""
    while True:
        await asyncio.sleep(LOOK_S)
        started_s = time.perf_counter()
        learner.fleet.devices()
        learner.fleet.training()
        folds.append((time.perf_counter() - started_s) * 1e3)


async def _draw(learner: Learning) -> None:
    while True:
        await learner.replay.wait_ready()
        draw = learner.replay.take(Moment(0))
        await asyncio.to_thread(collate, draw.taken, updates_now=0)
