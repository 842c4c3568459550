"""A fleet view over a clock and a journal that the test moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sim import SimDevice
from strategies import cartpole_spec

from cloud_learner.fleet.fleet import Fleet, LearnerFacts
from cloud_learner.journal.audit import Decided, RunKey
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uplink.arrivals import Report, open_reports
from shoal.v1 import device_pb2 as pb
from shoal.v1 import fleet_pb2

SPEC = cartpole_spec()
OLD, NEW = b"old-run".ljust(16), b"new-run".ljust(16)
ONLINE, EXPECTED, LOST = (
    pb.DEVICE_STATE_ONLINE,
    pb.DEVICE_STATE_OFFLINE_EXPECTED,
    pb.DEVICE_STATE_OFFLINE_LOST,
)


@dataclass
class World:
    """A fleet view over a clock and a journal that the test moves."""

    now_s: float = 100.0
    decided: dict[RunKey, Decided] = field(default_factory=dict)
    updates: int = 0

    def __post_init__(self) -> None:
        facts = LearnerFacts(
            decided=lambda run: self.decided.get(run, Decided()),
            updates=lambda: self.updates,
            updates_of={1: 10}.get,
            replay_steps=lambda: 7,
            counters=Counter(duplicates=3),
            note_version=lambda version: "too high" if version > 9 else "",
        )
        self.fleet = Fleet(facts, TrainingStats(clock=self.clock), clock=self.clock)

    def clock(self) -> float:
        return self.now_s

    def hear(self, device: SimDevice) -> None:
        for report in open_reports([device.telemetry_message()]).telemetries:
            self.fleet.note_telemetry(report)

    def device(self, device_id: str = "pi-1") -> fleet_pb2.Device:
        return next(each for each in self.fleet.devices() if each.device_id == device_id)


def status(state: pb.DeviceState, run_id: bytes = NEW, reason: str = "") -> pb.Status:
    return pb.Status(device_id="pi-1", run_id=run_id, state=state, reason=reason)


def report(run_id: bytes, uptime_s: float) -> Report:
    return Report(pb.Telemetry(device_id="pi-1", run_id=run_id, uptime_s=uptime_s), {})
