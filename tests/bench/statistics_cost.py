"""What statistics of observations cost where: reckoned by the learner, or told by devices.

    PYTHONPATH=tests python -m bench.statistics_cost [--quick]

In the mode `trajectories` the learner has the observations of each chunk anyway. This measures what
it costs there to reckon the normalizer's statistics of a batch, beside a step of training on that
batch, and beside what it would cost a device to reckon them for each chunk and to send them with
it. Prints a table: microseconds are medians, the last two columns bytes of one chunk.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from bench.report import table
from strategies import make_chunk

from cloud_learner.algorithms.appo import APPO
from cloud_learner.algorithms.interface import Setup
from cloud_learner.config import NetworkConfig
from cloud_learner.gradients.run_statistics import RunStatistics
from cloud_learner.journal.audit import RunKey
from cloud_learner.training.experience import Admitted, collate
from edge_agent.gradients.observed import Observed
from shoal.envelope import ChunkKey
from shoal.layout import ObservationLayout
from shoal.spaces import Discrete, EnvSpec, unbounded
from shoal.trajectory import Chunk, encode_chunk

STEPS, ENVS, CHUNKS = 32, 8, 8


@dataclass(frozen=True)
class Row:
    """Of observations of so many numbers.

    Attributes:
        numbers: E.
        learner_us: To reckon those of a batch of `CHUNKS` chunks.
        step_us: To train on that batch, statistics included.
        merge_us: To merge what `CHUNKS` devices told.
        device_us: To reckon those of one chunk.
        chunk_bytes: Of one chunk as it is sent, without them.
        told_bytes: That they add.
    """

    numbers: int
    learner_us: float
    step_us: float
    merge_us: float
    device_us: float
    chunk_bytes: int
    told_bytes: int


def timed_us(work: Callable[[], object], times: int) -> float:
    """The median of so many calls."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(taken)


def measure(numbers: int, times: int) -> Row:
    """One row."""
    spec = EnvSpec("Numbers-v0", unbounded((numbers,)), Discrete(2))
    chunks: list[Chunk] = [
        make_chunk(spec, steps=STEPS, envs=ENVS, seed=seed) for seed in range(CHUNKS)
    ]
    items = [Admitted(ChunkKey("", b"", 0), 0, chunk, 0) for chunk in chunks]
    batch = collate(items, updates_now=0)
    algorithm = APPO(Setup(spec, NetworkConfig(normalize=True), seed=0), APPO.Settings())
    rows = batch.observations[:-1].reshape(-1, numbers)
    layout = ObservationLayout.of(spec.observation)
    observed = Observed(layout)
    observed.add(chunks[0].observations[:-1])
    told = observed.statistics
    assert told is not None
    runs, seq = RunStatistics(numbers), iter(range(1 << 30))

    def merge() -> None:
        number = next(seq)
        for device in range(CHUNKS):
            runs.note(RunKey(f"pi-{device}", bytes(16)), number, told)
        runs.merged()

    return Row(
        numbers,
        learner_us=timed_us(lambda: algorithm.policy.observe(rows), times),
        step_us=timed_us(lambda: algorithm.learn(batch), max(3, times // 20)),
        merge_us=timed_us(merge, times),
        device_us=timed_us(lambda: observed.add(chunks[0].observations[:-1]), times),
        chunk_bytes=len(encode_chunk(chunks[0])),
        told_bytes=told.to_pb().ByteSize(),
    )


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions, one size")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rows = [measure(numbers, 20 if quick else 400) for numbers in ((4,) if quick else (4, 32, 348))]
    headings = (
        "numbers",
        "learner us",
        "of its step",
        "merge us",
        "device us",
        "chunk B",
        "told B",
    )
    cells = [
        (
            row.numbers,
            round(row.learner_us),
            f"{row.learner_us / row.step_us:.2%}",
            round(row.merge_us),
            round(row.device_us),
            row.chunk_bytes,
            row.told_bytes,
        )
        for row in rows
    ]
    text = f"chunks of {STEPS} steps of {ENVS} environments, {CHUNKS} of them a batch\n\n"
    sys.stdout.write(text + table(headings, cells) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
