"""Acknowledgements to devices: cumulative, of durable decisions only, and repeated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cloud_learner.audit import Decided, RunKey
from shoal.ranges import MAX_SPANS, Ranges
from shoal.v1 import device_pb2 as pb
from shoal.wire import frame

_NO_END = 1 << 62


@dataclass(slots=True)
class _Heard:
    oldest_seq: int
    at_s: float


class Acks:
    """Builds what each device is told: which of the chunks it may still hold are decided.

    A device holds nothing below the highest `oldest_seq` it sent, so nothing below is repeated.

    acks = Acks(journal.decided)
    acks.heard(RunKey("pi-1", run_id), oldest_seq=3, now_s=now_s)
    for device_id, payload in acks.messages([run]).items(): ...
    """

    def __init__(self, decided: Callable[[RunKey], Decided]) -> None:
        self._decided = decided
        self._heard: dict[RunKey, _Heard] = {}

    def heard(self, run: RunKey, *, oldest_seq: int, now_s: float) -> None:
        """Notes that a run sent something."""
        before = self._heard.get(run)
        oldest = oldest_seq if before is None else max(before.oldest_seq, oldest_seq)
        self._heard[run] = _Heard(oldest, now_s)

    def recent(self, since_s: float) -> list[RunKey]:
        """The runs that sent something at or after `since_s`; forgets the others."""
        self._heard = {run: heard for run, heard in self._heard.items() if heard.at_s >= since_s}
        return list(self._heard)

    def messages(self, runs: Iterable[RunKey]) -> dict[str, bytes]:
        """One framed `Ack` for each device of these runs that has something decided."""
        by_device: dict[str, list[pb.RunAck]] = defaultdict(list)
        for run in runs:
            settled = self.settled(run)
            if settled:
                spans = Ranges(settled.spans[:MAX_SPANS]).to_pb()
                by_device[run.device_id].append(pb.RunAck(run_id=run.run_id, settled=spans))
        return {
            device_id: frame(pb.Ack(device_id=device_id, runs=run_acks))
            for device_id, run_acks in by_device.items()
        }

    def settled(self, run: RunKey) -> Ranges:
        """What a run is told: decided, and not below what it still holds."""
        heard = self._heard.get(run)
        oldest = heard.oldest_seq if heard is not None else 0
        return self._decided(run).settled.intersection(Ranges(((oldest, _NO_END),)))
