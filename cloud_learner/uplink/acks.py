"""Acknowledgements to devices: cumulative, of durable decisions only, and repeated."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cloud_learner.journal.audit import Decided, RunKey
from shoal.ranges import MAX_SPANS, Ranges
from shoal.v1 import device_pb2 as pb
from shoal.wire import frame

MAX_ACK_BYTES: Final = 64 * 1024
"""Of one frame; brokers close the connection of whoever sends more than they take."""
MAX_FRAMES: Final = 4
"""For one device at a time; runs beyond them are told when they send something again."""
MAX_RUNS_HEARD: Final = 256
"""Of one device; what is known of those that were silent the longest is forgotten."""
_SPANS_PER_PART = 256
_FRAME_OVERHEAD_BYTES = 256  # magic, version, checksum, device id
_PART_OVERHEAD_BYTES = 8
_NO_END = 1 << 62


@dataclass(slots=True)
class _Heard:
    oldest_seq: int
    at_s: float
    repeats: int = 0


class Acks:
    """Builds what each device is told: which of the chunks it may still hold are decided.

    A device holds nothing below the highest `oldest_seq` it sent, so nothing below is repeated.

    acks = Acks(journal.decided)
    acks.heard(RunKey("pi-1", run_id), oldest_seq=3, now_s=now_s)
    for device_id, payloads in acks.messages([run]).items(): ...
    """

    def __init__(self, decided: Callable[[RunKey], Decided]) -> None:
        self._decided = decided
        self._heard: dict[RunKey, _Heard] = {}  # the run that was heard last comes last
        self._runs_of: Counter[str] = Counter()

    def heard(self, run: RunKey, *, oldest_seq: int, now_s: float) -> None:
        """Notes that a run sent something."""
        before = self._heard.pop(run, None)
        oldest = oldest_seq if before is None else max(before.oldest_seq, oldest_seq)
        if before is None:
            self._make_room(run.device_id)
            self._runs_of[run.device_id] += 1
        self._heard[run] = _Heard(oldest, now_s)

    def due(self, now_s: float, *, every_s: float, window_s: float) -> list[RunKey]:
        """The runs that are to be told again now; forgets those silent for `window_s`.

        A run is told again `every_s` after it was heard, then after twice as long, and so on: most
        acknowledgements arrive, and a thousand devices are told of a thousand runs each time.
        """
        self._heard = {
            run: heard for run, heard in self._heard.items() if heard.at_s >= now_s - window_s
        }
        self._runs_of = Counter(run.device_id for run in self._heard)
        found: list[RunKey] = []
        for run, heard in self._heard.items():
            if now_s - heard.at_s >= every_s * (2.0 ** (heard.repeats + 1) - 1.0):
                heard.repeats += 1
                found.append(run)
        return found

    def messages(self, runs: Iterable[RunKey]) -> dict[str, list[bytes]]:
        """Framed `Ack`s for each device of these runs that has something decided.

        The run that was heard last comes first. Each frame has `MAX_ACK_BYTES` at most, and each
        device `MAX_FRAMES`.
        """
        wanted = list(runs)
        at = {run: place for place, run in enumerate(self._heard)} if len(wanted) > 1 else {}
        by_device: dict[str, list[RunKey]] = defaultdict(list)
        for run in sorted(wanted, key=lambda run: -at.get(run, -1)):
            by_device[run.device_id].append(run)
        framed = {device_id: self._frames(device_id, its) for device_id, its in by_device.items()}
        return {device_id: frames for device_id, frames in framed.items() if frames}

    def _frames(self, device_id: str, runs: list[RunKey]) -> list[bytes]:
        frames: list[bytes] = []
        ack, used = pb.Ack(device_id=device_id), _FRAME_OVERHEAD_BYTES
        for run in runs:
            for part in _parts(run, self.settled(run)):
                size = part.ByteSize() + _PART_OVERHEAD_BYTES
                if used + size > MAX_ACK_BYTES:
                    frames.append(frame(ack))
                    if len(frames) == MAX_FRAMES:
                        return frames
                    ack, used = pb.Ack(device_id=device_id), _FRAME_OVERHEAD_BYTES
                ack.runs.append(part)
                used += size
        return [*frames, frame(ack)] if ack.runs else frames

    def _make_room(self, device_id: str) -> None:
        if self._runs_of[device_id] < MAX_RUNS_HEARD:
            return
        silent = next(run for run in self._heard if run.device_id == device_id)
        del self._heard[silent]
        self._runs_of[device_id] -= 1

    def settled(self, run: RunKey) -> Ranges:
        """What a run is told: decided, and not below what it still holds."""
        heard = self._heard.get(run)
        oldest = heard.oldest_seq if heard is not None else 0
        return self._decided(run).settled.intersection(Ranges(((oldest, _NO_END),)))


def _parts(run: RunKey, settled: Ranges) -> Iterator[pb.RunAck]:
    """A run's answer in pieces that each fit into a frame."""
    spans = settled.spans[:MAX_SPANS]
    for at in range(0, len(spans), _SPANS_PER_PART):
        part = Ranges(spans[at : at + _SPANS_PER_PART]).to_pb()
        yield pb.RunAck(run_id=run.run_id, settled=part)
