"""The fleet: the view of all devices, folded from their messages, and the audit of every chunk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cloud_learner.fleet.device_record import DeviceRecord, KnownEvent, age
from cloud_learner.fleet.event_log import EventLog, learner_event, state_event
from cloud_learner.fleet.run_reports import RunReports
from cloud_learner.journal.audit import Audit, Decided, RunKey, RunReport
from cloud_learner.serving.call_refusals import CallRefusal
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uplink.arrivals import LEARNER, Birth, Report
from cloud_learner.uplink.throttle import Throttle
from shoal.logs import get_logger
from shoal.spaces import EnvSpec
from shoal.topics import RESERVED_NAMES
from shoal.v1 import device_pb2 as pb
from shoal.v1 import fleet_pb2

STALE_AFTER_S: Final = 15.0
WARN_AGAIN_S: Final = 60.0
MAX_BIRTHS: Final = 64
"""Births that wait while no space is known; later ones tell nothing more."""
_log = get_logger("fleet")


@dataclass(frozen=True, slots=True)
class LearnerFacts:
    """What the view asks of the rest of the learner, each a plain read.

    Attributes:
        decided: What was decided about the chunks of a run.
        updates: The learner's optimiser updates now.
        updates_of: Optimiser updates when a policy version was published; None: unknown.
        replay_steps: Transitions that wait in replay.
        counters: Everything that is counted, by name.
        note_version: Told the policy version that a device holds; what is wrong with it, or "".
        gradients_of: What became of the updates that a device pushed, by outcome.
    """

    decided: Callable[[RunKey], Decided]
    updates: Callable[[], int]
    updates_of: Callable[[int], int | None]
    replay_steps: Callable[[], int]
    counters: Mapping[str, int]
    note_version: Callable[[int], str] = lambda _: ""
    gradients_of: Callable[[str], Mapping[str, int]] = lambda _: {}


class Fleet:
    """Every device, its events, its chunks. Used from the event loop; asks only plain values.

    fleet = Fleet(facts, stats)
    fleet.note_status(birth)
    spec = await fleet.next_birth()
    fleet.audit().total.balanced

    Attributes:
        log: What happened, of all devices, in the order in which it was heard of.
    """

    def __init__(
        self,
        facts: LearnerFacts,
        stats: TrainingStats,
        *,
        reports: Mapping[RunKey, RunReport] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts with no device.

        Args:
            facts: What the rest of the learner knows.
            stats: The state of training.
            reports: What devices said of their runs before the learner restarted.
            clock: Monotonic seconds.
        """
        self.log = EventLog(clock=clock)
        self._facts = facts
        self._stats = stats
        self._clock = clock
        self._devices: dict[str, DeviceRecord] = {}
        self._reports = RunReports(facts.decided, reports or {})
        self._births: asyncio.Queue[EnvSpec] = asyncio.Queue(MAX_BIRTHS)
        self._spec: EnvSpec | None = None
        self._misfits: set[str] = set()
        self._state = "waiting_for_device"
        self._conditions: dict[str, str] = {}
        self._event_seq = 0
        self._throttle = Throttle(WARN_AGAIN_S, clock=clock)
        for run in reports or {}:
            self._record(run.device_id)

    # ------------------------------------------------------------------------- what devices say

    def note_status(self, birth: Birth) -> None:
        """Folds a birth or death certificate in."""
        status = birth.status
        record = self._record(status.device_id)
        before = record.status
        if not record.note_status(status, self._clock()):
            return
        if before is None or (before.run_id, before.state) != (status.run_id, status.state):
            self.log.add(state_event(status), by=LEARNER)
        _log.info(
            "device_status",
            device_id=status.device_id,
            run_id=status.run_id,
            state=pb.DeviceState.Name(status.state),
            reason=status.reason,
        )
        if status.state != pb.DEVICE_STATE_ONLINE or birth.spec is None:
            return
        self._misfits.discard(status.device_id)
        if self._spec is None:
            if not self._births.full():
                self._births.put_nowait(birth.spec)
        elif birth.spec.fingerprint != self._spec.fingerprint:
            self._misfits.add(status.device_id)
            self.record(
                status.device_id,
                "spec_mismatch",
                f"{status.device_id} acts in {birth.spec.env_id!r} and this fleet trains for "
                f"{self._spec.env_id!r}, whose spaces differ; its chunks are rejected: change the "
                "device's env.id, or give it another fleet",
                severity=pb.SEVERITY_ERROR,
            )

    def note_telemetry(self, report: Report) -> None:
        """Folds a device's report in."""
        telemetry = report.telemetry
        record, now_s = self._record(telemetry.device_id), self._clock()
        if record.note_telemetry(telemetry, now_s):
            record.version_problem = self._facts.note_version(telemetry.active_version)
        elif record.used_twice_at_s == now_s:
            self._tell_used_twice(telemetry)
        self._reports.note(report.runs)

    def _tell_used_twice(self, telemetry: pb.Telemetry) -> None:
        device_id = telemetry.device_id
        if self._throttle.count_to_tell(("name_used_twice", device_id)):
            self.record(
                device_id,
                "name_used_twice",
                f"a process of an earlier run still reports as {device_id}: stop one of the two, "
                "or enrol it under a name of its own",
                run_id=telemetry.run_id.hex(),
            )

    def note_event(self, event: pb.Event) -> None:
        """Keeps an event of a device, or of a service of the fleet."""
        if self._record(event.device_id).note_event(event, self._clock()):
            self.log.add(event)

    def note_chunk(self, device_id: str) -> None:
        """Notes that a new chunk of a device was settled."""
        self._record(device_id).chunk_at_s = self._clock()

    def note_rejected(self, device_id: str, reason: str, count: int) -> None:
        """Notes that new chunks of a device were rejected."""
        self._record(device_id).note_rejected(reason, count, self._clock())

    # ----------------------------------------------------------------------- what the learner says

    def record(
        self,
        device_id: str,
        name: str,
        message: str,
        *,
        severity: pb.Severity = pb.SEVERITY_WARNING,
        **fields: str,
    ) -> None:
        """Records an event of the learner about a device, and logs it."""
        self._event_seq += 1
        event = learner_event(
            device_id, name, message, severity=severity, fields=fields, seq=self._event_seq
        )
        self._record(device_id).note_event(event, self._clock())
        self.log.add(event, by=LEARNER)
        loud = {pb.SEVERITY_ERROR: _log.error, pb.SEVERITY_INFO: _log.info}
        log = loud.get(severity, _log.warning)
        log(name, device_id=device_id, detail=message, **fields)

    def note_call_refused(self, refusal: CallRefusal) -> None:
        """A call over gRPC was refused; a certificate of the fleet says whose it was."""
        told = self._throttle.count_to_tell(("call_refused", refusal.name, refusal.reason))
        if told:
            # No record is made for it: a certificate alone is no device that acts here.
            event = learner_event(
                refusal.name or LEARNER,
                "call_refused",
                refusal.detail,
                severity=pb.SEVERITY_WARNING,
                fields={"reason": refusal.reason, "count": str(told)},
            )
            self.log.add(event, by=LEARNER)

    def raise_condition(self, name: str, message: str) -> None:
        """Says that something is wrong until it is cleared; an event the first time."""
        if name not in self._conditions:
            self.record(LEARNER, name, message, severity=pb.SEVERITY_ERROR)
        self._conditions[name] = message

    def clear_condition(self, name: str) -> None:
        """Says that it is over."""
        if self._conditions.pop(name, None) is not None:
            self.record(LEARNER, f"{name}_cleared", "it is over", severity=pb.SEVERITY_INFO)

    def set_spec(self, spec: EnvSpec) -> None:
        """From now on the fleet trains for these spaces."""
        self._spec = spec
        self._state = "training"

    async def next_birth(self) -> EnvSpec:
        """Waits for the birth of a device and returns what it acts in."""
        return await self._births.get()

    @property
    def learner_state(self) -> str:
        """`waiting_for_device`, `training`, or the condition that is wrong."""
        return next(iter(self._conditions), self._state)

    def take_unsaved_reports(self) -> dict[RunKey, RunReport]:
        """What devices said of their runs since the last call."""
        return self._reports.take_unsaved()

    def put_unsaved(self, reports: Mapping[RunKey, RunReport]) -> None:
        """Gives back what could not be saved."""
        self._reports.put_unsaved(reports)

    def present(self) -> dict[str, float]:
        """The devices that act for this fleet now, and transitions a second as last reported."""
        now_s = self._clock()
        return {
            device_id: record.telemetry.steps_per_s if record.telemetry is not None else 0.0
            for device_id, record in self._devices.items()
            if device_id not in self._misfits
            and record.status is not None
            and record.alive(now_s, stale_after_s=STALE_AFTER_S)
        }

    def statuses(self) -> dict[str, pb.Status]:
        """The last birth or death of each device that acts in what this fleet trains for."""
        return {
            device_id: record.status
            for device_id, record in self._devices.items()
            if device_id not in self._misfits and record.status is not None
        }

    def status_of(self, device_id: str) -> pb.Status | None:
        """The last birth or death of one device; None: it was never heard of."""
        record = self._devices.get(device_id)
        return None if record is None else record.status

    def is_gone(self, device_id: str, run_id: bytes) -> bool:
        """Whether a run of a device is known to have ended, or fell silent."""
        record = self._devices.get(device_id)
        if record is None or record.status is None:
            return False
        if record.status.run_id != run_id:
            return run_id in record.ended_runs
        return not record.alive(self._clock(), stale_after_s=STALE_AFTER_S)

    def steps_per_s(self, device_id: str) -> float:
        """Transitions a second that a device makes, as last reported; 0: unknown."""
        record = self._devices.get(device_id)
        return 0.0 if record is None or record.telemetry is None else record.telemetry.steps_per_s

    # ----------------------------------------------------------------------- what operators read

    def devices(self) -> list[fleet_pb2.Device]:
        """Every device, sorted by id."""
        audits = self.audits()
        return [
            self._device(record, audits.get(device_id, Audit()))
            for device_id, record in sorted(self._devices.items())
            if device_id not in RESERVED_NAMES
        ]

    def describe(self, device_id: str) -> fleet_pb2.DescribeDeviceResponse | None:
        """One device and its events, newest first; None when it was never heard of."""
        record = self._devices.get(device_id)
        if record is None:
            return None
        return fleet_pb2.DescribeDeviceResponse(
            device=self._device(record, self.audits().get(device_id, Audit())),
            events=[self._recorded(known) for known in record.history()],
        )

    def audits(self) -> dict[str, Audit]:
        """What became of the chunks of each device that reported on them."""
        return self._reports.audits()

    def audit(self) -> fleet_pb2.AuditResponse:
        """What became of every chunk: in total and by device."""
        audits = self.audits()
        now_s = self._clock()
        return fleet_pb2.AuditResponse(
            total=Audit.sum(audits.values()).to_pb(),
            devices=[
                fleet_pb2.DeviceAudit(
                    device_id=device_id,
                    audit=audit.to_pb(),
                    telemetry_age_s=age(self._record(device_id).telemetry_at_s, now_s),
                )
                for device_id, audit in sorted(audits.items())
            ],
        )

    def training(self) -> fleet_pb2.Training:
        """The state of training."""
        now_s = self._clock()
        training = self._stats.to_pb()
        training.replay_steps = self._facts.replay_steps()
        training.audit.CopyFrom(self._reports.total().to_pb())
        training.devices_online = sum(
            record.alive(now_s, stale_after_s=STALE_AFTER_S)
            for device_id, record in self._devices.items()
            if device_id not in RESERVED_NAMES
        )
        training.learner_state = self.learner_state
        training.learner_problem = next(iter(self._conditions.values()), "")
        training.counters.update(self._facts.counters)
        return training

    def staleness_of(self, version: int) -> float | None:
        """The staleness gap of a policy version in nats; None when no batch was of it alone."""
        return self._stats.staleness_of(version)

    # ------------------------------------------------------------------------------------- parts

    def _record(self, device_id: str) -> DeviceRecord:
        known = self._devices.get(device_id)
        if known is None:
            known = self._devices[device_id] = DeviceRecord(device_id)
        return known

    def _device(self, record: DeviceRecord, audit: Audit) -> fleet_pb2.Device:
        now_s = self._clock()
        health = record.health(now_s, stale_after_s=STALE_AFTER_S)
        device = fleet_pb2.Device(
            device_id=record.device_id,
            health=health.state,
            status_age_s=age(record.status_at_s, now_s),
            telemetry_age_s=age(record.telemetry_at_s, now_s),
            chunk_age_s=age(record.chunk_at_s, now_s),
            audit=audit.to_pb(),
            reasons=health.reasons,
            gradients=self._facts.gradients_of(record.device_id),
        )
        if record.status is not None:
            device.status.CopyFrom(record.status)
        if record.telemetry is not None:
            device.telemetry.CopyFrom(record.telemetry)
            updates = self._facts.updates_of(record.telemetry.active_version)
            if updates is not None:
                device.lag_updates = max(0, self._facts.updates() - updates)
        return device

    def _recorded(self, known: KnownEvent) -> fleet_pb2.RecordedEvent:
        return fleet_pb2.RecordedEvent(event=known.event, age_s=age(known.at_s, self._clock()))
