"""What is known of one device, folded from its messages; late and repeated ones change nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from shoal.v1 import device_pb2 as pb
from shoal.v1 import fleet_pb2

MAX_EVENTS: Final = 100
MAX_ENDED_RUNS: Final = 64
RECENT_ERROR_S: Final = 60.0
NEVER: Final = -1.0

_OFFLINE = {
    pb.DEVICE_STATE_OFFLINE_EXPECTED: fleet_pb2.HEALTH_OFFLINE_EXPECTED,
    pb.DEVICE_STATE_OFFLINE_LOST: fleet_pb2.HEALTH_OFFLINE_LOST,
}


@dataclass(frozen=True, slots=True)
class Health:
    """A device's state and, unless it is simply online, why."""

    state: fleet_pb2.Health
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """An event and when it came, in monotonic seconds."""

    event: pb.Event
    at_s: float


@dataclass(slots=True)
class DeviceRecord:
    """One device. Times are the server's monotonic seconds; None: never.

    record = DeviceRecord("pi-1")
    record.note_status(status, now_s)
    record.health(now_s, stale_after_s=15.0).state
    """

    device_id: str
    status: pb.Status | None = None
    status_at_s: float | None = None
    telemetry: pb.Telemetry | None = None
    telemetry_at_s: float | None = None
    chunk_at_s: float | None = None
    events: deque[KnownEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    ended_runs: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_ENDED_RUNS))

    def note_status(self, status: pb.Status, now_s: float) -> bool:
        """Folds a birth or death in; False when it is of a run that was replaced: a late one.

        A last will carries the run it is of, so the will of an earlier run never ends a newer one.
        """
        current = self.status.run_id if self.status is not None else None
        if status.run_id in self.ended_runs:
            return False
        if current is not None and status.run_id != current:
            if status.state != pb.DEVICE_STATE_ONLINE:
                return False
            self.ended_runs.append(current)
        self.status, self.status_at_s = status, now_s
        return True

    def note_telemetry(self, telemetry: pb.Telemetry, now_s: float) -> bool:
        """Folds a report in; False when it is older than what is known."""
        if telemetry.run_id in self.ended_runs:
            return False
        known = self.telemetry
        same_run = known is not None and known.run_id == telemetry.run_id
        if known is not None and same_run and telemetry.uptime_s < known.uptime_s:
            return False
        self.telemetry, self.telemetry_at_s = telemetry, now_s
        return True

    def note_event(self, event: pb.Event, now_s: float) -> bool:
        """Keeps an event; False when it is known already, as QoS 1 may deliver one twice."""
        name = (event.run_id, event.event_seq)
        if event.run_id and any((e.event.run_id, e.event.event_seq) == name for e in self.events):
            return False
        self.events.append(KnownEvent(event, now_s))
        return True

    def health(self, now_s: float, *, stale_after_s: float) -> Health:
        """The device's state by the server's clock."""
        status = self.status
        heard_s = max(
            (
                at
                for at in (self.status_at_s, self.telemetry_at_s, self.chunk_at_s)
                if at is not None
            ),
            default=None,
        )
        if status is not None and status.state in _OFFLINE and not self._alive_since_death():
            return Health(_OFFLINE[status.state], (status.reason,) if status.reason else ())
        if heard_s is None or now_s - heard_s > stale_after_s:
            return Health(
                fleet_pb2.HEALTH_STALE,
                ("never heard of" if heard_s is None else f"silent for {now_s - heard_s:.0f} s",),
            )
        errors = tuple(
            dict.fromkeys(
                known.event.message or known.event.name
                for known in self.events
                if known.event.severity == pb.SEVERITY_ERROR
                and now_s - known.at_s <= RECENT_ERROR_S
            )
        )
        return Health(fleet_pb2.HEALTH_DEGRADED if errors else fleet_pb2.HEALTH_ONLINE, errors)

    def _alive_since_death(self) -> bool:
        """Whether the run whose will fired reported again: its birth will follow."""
        return (
            self.status is not None
            and self.status.state == pb.DEVICE_STATE_OFFLINE_LOST
            and self.telemetry is not None
            and self.telemetry.run_id == self.status.run_id
            and self.telemetry_at_s is not None
            and self.status_at_s is not None
            and self.telemetry_at_s > self.status_at_s
        )


def age(at_s: float | None, now_s: float) -> float:
    """Seconds since; negative: never."""
    return NEVER if at_s is None else max(0.0, now_s - at_s)
