"""What is known of one device, folded from its messages; late and repeated ones change nothing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from shoal.v1 import device_pb2 as pb
from shoal.v1 import fleet_pb2

MAX_EVENTS: Final = 100
MAX_ENDED_RUNS: Final = 64
RECENT_S: Final = 60.0
"""How long an error, a rejected chunk or a name used twice keeps a device degraded."""
MAX_REJECTIONS: Final = 128
SPOOL_FAULT: Final = "spool_fault"
_SPOOL_EVENTS: Final = (SPOOL_FAULT, "spool_recovered")
LATE_REPORTS: Final = 2
"""Reports of a replaced run that tell of a second process; a single one was only late."""
PACE_WINDOW_S: Final = 10.0
"""Deadlines of the control loop are judged over so long: one stall is no trouble."""
MISSED_SHARE: Final = 0.05
"""The part of the deadlines that a device may miss and still be well."""
NEVER: Final = -1.0

_PROBLEMS = (pb.SEVERITY_WARNING, pb.SEVERITY_ERROR)
_OFFLINE = {
    pb.DEVICE_STATE_OFFLINE_EXPECTED: fleet_pb2.HEALTH_OFFLINE_EXPECTED,
    pb.DEVICE_STATE_OFFLINE_LOST: fleet_pb2.HEALTH_OFFLINE_LOST,
}


@dataclass(frozen=True, slots=True)
class Health:
    """A device's state and, unless it is simply online, why."""

    state: fleet_pb2.Health
    reasons: tuple[str, ...] = ()


_ONLINE: Final = Health(fleet_pb2.HEALTH_ONLINE)


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """An event, when it came in monotonic seconds, and its place in the order of arrival."""

    event: pb.Event
    at_s: float
    place: int


@dataclass(frozen=True, slots=True)
class Rejections:
    """Chunks that were rejected together, for the same reason."""

    reason: str
    count: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """Where the counters of a control loop stood, to be compared with later; `at_s`: since when."""

    run_id: bytes
    at_s: float
    misses: int
    env_steps: int


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
    problems: deque[KnownEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    rejections: deque[Rejections] = field(default_factory=lambda: deque(maxlen=MAX_REJECTIONS))
    ended_runs: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_ENDED_RUNS))
    version_problem: str = ""
    used_twice_at_s: float | None = None
    pace_problem: str = ""
    spool_problem: str = ""
    _pace: Pace | None = None
    _late_reports: dict[bytes, int] = field(default_factory=dict)
    _events_heard: int = 0

    def note_status(self, status: pb.Status, now_s: float) -> bool:
        """Folds a birth or death in; False when it is of a run that was replaced: a late one.

        A last will carries the run it is of, so the will of an earlier run never ends a newer one.
        """
        current = self.status.run_id if self.status is not None else None
        if status.run_id in self.ended_runs:
            if status.state != pb.DEVICE_STATE_ONLINE:
                self._late_reports.pop(status.run_id, None)  # that process did end
            return False
        if current is not None and status.run_id != current:
            if status.state != pb.DEVICE_STATE_ONLINE:
                return False
            self.ended_runs.append(current)
            if self.status is not None and self.status.state == pb.DEVICE_STATE_ONLINE:
                self._late_reports = {current: 0, **self._late_reports}
                self._late_reports = dict(list(self._late_reports.items())[:MAX_ENDED_RUNS])
        if status.run_id != current:
            self.spool_problem = ""  # a new process looks at its disk anew
        self.status, self.status_at_s = status, now_s
        return True

    def note_telemetry(self, telemetry: pb.Telemetry, now_s: float) -> bool:
        """Folds a report in; False when it is older than what is known."""
        if telemetry.run_id in self.ended_runs:
            self._note_late_report(telemetry.run_id, now_s)
            if not self._outlived_its_twin(telemetry.run_id):
                return False
        known = self.telemetry
        same_run = known is not None and known.run_id == telemetry.run_id
        if known is not None and same_run and telemetry.uptime_s < known.uptime_s:
            return False
        self.telemetry, self.telemetry_at_s = telemetry, now_s
        self._note_pace(telemetry, now_s)
        return True

    def note_event(self, event: pb.Event, now_s: float) -> bool:
        """Keeps an event; False when it is known already, as QoS 1 may deliver one twice."""
        name = (event.run_id, event.event_seq)
        bad = event.severity in _PROBLEMS
        kept = self.problems if bad else self.events
        if event.run_id and any((e.event.run_id, e.event.event_seq) == name for e in kept):
            return False
        if event.name in _SPOOL_EVENTS:  # told once: it lasts until the other one comes
            self.spool_problem = event.message if event.name == SPOOL_FAULT else ""
        self._events_heard += 1
        kept.append(KnownEvent(event, now_s, self._events_heard))
        return True

    def note_rejected(self, reason: str, count: int, now_s: float) -> None:
        """Notes that chunks of the device were rejected; those of one second are kept as one."""
        last = self.rejections[-1] if self.rejections else None
        if last is not None and last.reason == reason and now_s - last.at_s < 1.0:
            count += self.rejections.pop().count
            now_s = last.at_s
        self.rejections.append(Rejections(reason, count, now_s))

    def history(self) -> list[KnownEvent]:
        """Every event that is kept, newest first; no flood of one kind pushes problems out."""
        return sorted((*self.problems, *self.events), key=lambda known: -known.place)

    def alive(self, now_s: float, *, stale_after_s: float) -> bool:
        """Whether the device is online, be it degraded."""
        heard_s = self._heard_s()
        if heard_s is None or now_s - heard_s > stale_after_s:
            return False
        status = self.status
        return status is None or status.state not in _OFFLINE or self._alive_since_death()

    def _heard_s(self) -> float | None:
        """When the device was last heard of."""
        times = (self.status_at_s, self.telemetry_at_s, self.chunk_at_s)
        return max((at for at in times if at is not None), default=None)

    def health(self, now_s: float, *, stale_after_s: float) -> Health:
        """The device's state by the server's clock."""
        status = self.status
        heard_s = self._heard_s()
        if status is not None and status.state in _OFFLINE and not self._alive_since_death():
            return Health(_OFFLINE[status.state], (status.reason,) if status.reason else ())
        if heard_s is None or now_s - heard_s > stale_after_s:
            return Health(
                fleet_pb2.HEALTH_STALE,
                ("never heard of" if heard_s is None else f"silent for {now_s - heard_s:.0f} s",),
            )
        lasting = self.version_problem or self.pace_problem or self.spool_problem
        if not (lasting or self.problems or self.rejections) and self.used_twice_at_s is None:
            return _ONLINE
        reasons = tuple(dict.fromkeys(self._reasons(now_s)))
        return Health(fleet_pb2.HEALTH_DEGRADED if reasons else fleet_pb2.HEALTH_ONLINE, reasons)

    def _reasons(self, now_s: float) -> Iterator[str]:
        """Why the device is not simply online."""
        for known in self.problems:
            if known.event.severity == pb.SEVERITY_ERROR and now_s - known.at_s <= RECENT_S:
                yield known.event.message or known.event.name
        rejected: Counter[str] = Counter()
        for each in self.rejections:
            if now_s - each.at_s <= RECENT_S:
                rejected[each.reason] += each.count
        for reason, count in rejected.items():
            yield f"{count} chunks rejected in the last minute: {reason}"
        if self.version_problem:
            yield self.version_problem
        if self.pace_problem:
            yield self.pace_problem
        if self.spool_problem:
            yield self.spool_problem
        if self.used_twice_at_s is not None and now_s - self.used_twice_at_s <= RECENT_S:
            yield f"two processes use the name {self.device_id}"

    def _note_pace(self, telemetry: pb.Telemetry, now_s: float) -> None:
        """Whether the control loop kept its rate over the last while; without a rate it does."""
        pace = self._pace
        misses, steps = telemetry.deadline_misses, telemetry.env_steps
        if pace is None or pace.run_id != telemetry.run_id or misses < pace.misses:
            self.pace_problem = ""
        elif now_s - pace.at_s < PACE_WINDOW_S:
            return
        else:
            envs = max(1, self.status.envs if self.status is not None else 1)
            made = max(1, (steps - pace.env_steps) // envs)
            share = (misses - pace.misses) / made
            self.pace_problem = (
                f"misses {min(share, 1.0):.0%} of its control deadlines, at "
                f"{telemetry.control_hz_achieved:.1f} steps/s: lower actor.control_hz"
                if telemetry.control_hz_achieved and share > MISSED_SHARE
                else ""
            )
        self._pace = Pace(telemetry.run_id, now_s, misses, steps)

    def _note_late_report(self, run_id: bytes, now_s: float) -> None:
        if run_id not in self._late_reports:
            return  # it ended with a status, or so long ago that it was forgotten
        self._late_reports[run_id] += 1
        if self._late_reports[run_id] >= LATE_REPORTS:
            self.used_twice_at_s = now_s

    def _outlived_its_twin(self, run_id: bytes) -> bool:
        """Whether a run goes on that a second process of its name had replaced, and that one died.

        Several reports must have come since: a late one of a run that did end is no life.
        """
        return (
            self.status is not None
            and self.status.state == pb.DEVICE_STATE_OFFLINE_LOST
            and self._late_reports.get(run_id, 0) >= LATE_REPORTS
        )

    def _alive_since_death(self) -> bool:
        """Whether a run reported after a will fired: the same one, or another of its name."""
        return (
            self.status is not None
            and self.status.state == pb.DEVICE_STATE_OFFLINE_LOST
            and self.telemetry is not None
            and self.telemetry_at_s is not None
            and self.status_at_s is not None
            and self.telemetry_at_s > self.status_at_s
        )


def age(at_s: float | None, now_s: float) -> float:
    """Seconds since; negative: never."""
    return NEVER if at_s is None else max(0.0, now_s - at_s)
