"""The learner's side of `shoal bench scale`: ingest, journal, fleet and batches, and its audit."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe

from bench.report import median
from bench.stream_learner import Learning, Receiver, cpu_s, learning, rss_bytes

from cloud_learner.training.experience import collate
from cloud_learner.training.source import Moment

LOOK_S = 0.5
LIST_EVERY = 8


@dataclass(slots=True)
class Looks:
    """Milliseconds that looks at the fleet took, on the learner's event loop."""

    folds_ms: list[float] = field(default_factory=list)
    lists_ms: list[float] = field(default_factory=list)


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
        fold_ms: Of one look at the training and the audit of the whole fleet, the median.
        list_ms: Of one list of all devices, the median.
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
    list_ms: float


def learn(receiver: Receiver, pipe: Pipe) -> None:
    """Says "ready", counts from "go" to "stop", ends at "end", and answers a `LearnerResult`."""
    pipe.send(asyncio.run(_learn(receiver, pipe)))


async def _learn(receiver: Receiver, pipe: Pipe) -> LearnerResult:
    async with learning(receiver) as learner:
        before, looks = rss_bytes(), Looks()
        drawing = asyncio.ensure_future(_draw(learner))
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        used_s = cpu_s()
        looking = asyncio.ensure_future(_look(learner, looks))
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
            round(median(looks.folds_ms), 2),
            round(median(looks.lists_ms), 2),
        )


async def _look(learner: Learning, looks: Looks) -> None:
    """What one `shoal demo` or dashboard watches, and now and then a `shoal devices ls`."""
    while True:
        for _ in range(LIST_EVERY):
            await asyncio.sleep(LOOK_S)
            started_s = time.perf_counter()
            learner.fleet.training()
            looks.folds_ms.append((time.perf_counter() - started_s) * 1e3)
        started_s = time.perf_counter()
        learner.fleet.devices()
        looks.lists_ms.append((time.perf_counter() - started_s) * 1e3)


async def _draw(learner: Learning) -> None:
    while True:
        await learner.replay.wait_ready()
        draw = learner.replay.take(Moment(0))
        await asyncio.to_thread(collate, draw.taken, updates_now=0)
