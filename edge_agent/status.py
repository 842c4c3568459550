"""What a device says of itself: birth and death certificates, and reports at an interval."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from edge_agent.acting.actor import Actor
from edge_agent.downlink.downlink import Downlink
from edge_agent.gradients.queue import GradientQueue
from edge_agent.gradients.uplink import Counters as Pushed
from edge_agent.gradients.uplink import GradientUplink
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.policies.precision import Choice, PrecisionChooser
from edge_agent.spool.run_ledger import RunLedger, coalesce
from edge_agent.spool.spool import Spool
from edge_agent.uplink.appetite import Appetite
from edge_agent.uplink.uplink import Uplink
from shoal.spaces import EnvSpec
from shoal.v1 import device_pb2 as pb
from shoal.v1.slot_pb2 import SlotReport

MAX_RUNS: Final = 128
"""Runs that one report tells of; if there are more, they take turns, see `page`."""
MAX_SPANS: Final = 32
"""Spans of a ledger that one report carries; older ones are joined, see `coalesce`."""
_MODEL: Final = Path("/proc/device-tree/model")
_STATM: Final = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a report is made of, at one instant.

    Attributes:
        uptime_s: since the start of the run.
        env_steps: transitions, all environments.
        episodes: that ended.
        deadline_misses: of the control loop.
        steps_per_s: transitions a second since the report before.
        control_hz_achieved: steps of one environment a second; 0 when no rate is set.
        active_version: 0 before the first policy.
        active_digest: of what was really loaded.
        swaps: policies that became current in this run.
        swap_ms: of the last ones.
        policy_rejections: policies refused.
        rss_bytes: memory of the process.
        bytes_up: payload bytes published.
        bytes_down: policy payload bytes received.
        spool_bytes: bytes of chunks on the disk.
        resent_chunks: chunks sent more than once.
        learner_ack_age_s: seconds since the learner acknowledged; negative: never.
        ledger: what became of every chunk.
        choice: which form of the policy acts, and why; None before the first policy.
        wanted_steps_per_s: what the learner wants of this device; 0: as many as it makes.
        oldest_version: chunks of versions before it expire; 0: none do.
        updates_pushed: gradients that the server answered.
        updates_applied: those that it applied.
        gradient_chunks_dropped: chunks given up before their gradients were computed.
        slot: which installation this is; None where no launcher started it.
    """

    uptime_s: float
    env_steps: int
    episodes: int
    deadline_misses: int
    steps_per_s: float
    control_hz_achieved: float
    active_version: int
    active_digest: bytes
    swaps: int
    swap_ms: Sequence[float]
    policy_rejections: int
    rss_bytes: int
    bytes_up: int
    bytes_down: int
    spool_bytes: int
    resent_chunks: int
    learner_ack_age_s: float
    ledger: Sequence[RunLedger]
    choice: Choice | None = None
    wanted_steps_per_s: float = 0.0
    oldest_version: int = 0
    updates_pushed: int = 0
    updates_applied: int = 0
    gradient_chunks_dropped: int = 0
    slot: SlotReport | None = None


@dataclass(frozen=True, slots=True)
class Certifier:
    """Makes the birth and death certificates of one run.

    certify = Certifier("pi-1", run_id, spec, envs=8, clock=time.time)
    status = certify(pb.DEVICE_STATE_ONLINE, "connected")

    Attributes:
        device_id: the device.
        run_id: 16 bytes.
        spec: of the device's environment.
        envs: how many environments it steps.
        clock: wall clock, seconds since the epoch.
        slot: how its slot stands; None where no launcher started it.
    """

    device_id: str
    run_id: bytes
    spec: EnvSpec
    envs: int
    clock: Callable[[], float]
    slot: Callable[[], SlotReport | None] = lambda: None

    def __call__(self, state: pb.DeviceState, reason: str) -> pb.Status:
        """The certificate of a state."""
        return pb.Status(
            device_id=self.device_id,
            run_id=self.run_id,
            state=state,
            sent_unix_ms=int(self.clock() * 1000),
            agent_version=version_of("shoal"),
            python_version=platform.python_version(),
            onnxruntime_version=version_of("onnxruntime"),
            hardware=hardware(),
            env_spec=self.spec.to_pb(),
            envs=self.envs,
            reason=reason,
            slot=self.slot(),
        )


def telemetry(device_id: str, run_id: bytes, vitals: Vitals, *, now_s: float) -> pb.Telemetry:
    """The report about some vitals.

    Args:
        device_id: the device.
        run_id: 16 bytes.
        vitals: what to report.
        now_s: wall clock, seconds since the epoch.
    """
    choice = vitals.choice or Choice("", "")
    return pb.Telemetry(
        device_id=device_id,
        run_id=run_id,
        sent_unix_ms=int(now_s * 1000),
        uptime_s=vitals.uptime_s,
        env_steps=vitals.env_steps,
        episodes=vitals.episodes,
        steps_per_s=vitals.steps_per_s,
        active_version=vitals.active_version,
        active_digest=vitals.active_digest,
        swaps=vitals.swaps,
        swap_ms_p99=percentile(vitals.swap_ms, 0.99),
        deadline_misses=vitals.deadline_misses,
        rss_bytes=vitals.rss_bytes,
        bytes_up=vitals.bytes_up,
        bytes_down=vitals.bytes_down,
        spool_bytes=vitals.spool_bytes,
        resent_chunks=vitals.resent_chunks,
        ledger=[ledger_entry(run) for run in vitals.ledger],
        policy_rejections=vitals.policy_rejections,
        learner_ack_age_s=vitals.learner_ack_age_s,
        control_hz_achieved=vitals.control_hz_achieved,
        active_precision=choice.precision,
        precision_reason=choice.reason,
        int8_us=choice.times_us.get("int8", 0.0),
        fp32_us=choice.times_us.get("fp32", 0.0),
        int8_dynamic_us=choice.times_us.get("int8_dynamic", 0.0),
        wanted_steps_per_s=vitals.wanted_steps_per_s,
        oldest_version=vitals.oldest_version,
        updates_pushed=vitals.updates_pushed,
        updates_applied=vitals.updates_applied,
        gradient_chunks_dropped=vitals.gradient_chunks_dropped,
        slot=vitals.slot,
    )


def ledger_entry(run: RunLedger) -> pb.RunLedger:
    """One run's counts as a message."""
    return pb.RunLedger(
        run_id=run.run_id,
        produced=run.produced,
        spooled=coalesce(run.spooled, MAX_SPANS).to_pb(),
        dropped=coalesce(run.dropped, MAX_SPANS).to_pb(),
        expired=coalesce(run.expired, MAX_SPANS).to_pb(),
    )


def page(ledger: Sequence[RunLedger], turn: int) -> Sequence[RunLedger]:
    """The runs that the report number `turn` tells of: the present one always, the rest in turn."""
    if len(ledger) <= MAX_RUNS:
        return ledger
    *past, present = ledger
    first = turn * (MAX_RUNS - 1) % len(past)
    return [*(past[first:] + past[:first])[: MAX_RUNS - 1], present]


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def version_of(distribution: str) -> str:
    """The installed version of a distribution, or "unknown"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def hardware() -> pb.Hardware:
    """The machine."""
    try:
        model = _MODEL.read_text().strip("\0\n ")
    except OSError:
        model = ""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return pb.Hardware(
        machine=platform.machine(), model=model, cpus=os.cpu_count() or 1, memory_bytes=memory
    )


def rss_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


class Reporter:
    """Reads the parts of an agent and reports on them.

    reporter = Reporter("pi-1", run_id, actor=actor, ...)
    await uplink.report_every(reporter.telemetry, 1.0)
    """

    def __init__(
        self,
        device_id: str,
        run_id: bytes,
        *,
        actor: Actor,
        policies: PolicyStore,
        chooser: PrecisionChooser,
        spool: Spool,
        uplink: Uplink,
        downlink: Downlink,
        appetite: Appetite,
        paced: bool,
        queue: GradientQueue | None = None,
        gradients: GradientUplink | None = None,
        slot: Callable[[], SlotReport | None] = lambda: None,
    ) -> None:
        """Starts the run's clock.

        Args:
            device_id: the device.
            run_id: 16 bytes.
            actor: who acts.
            policies: what with.
            chooser: in which precision.
            spool: where chunks wait.
            uplink: how they leave.
            downlink: how policies come.
            appetite: what the learner wants.
            paced: whether a control rate is set.
            queue: where chunks wait for their gradients, if any do.
            gradients: how those leave.
            slot: how its slot stands; None where no launcher started it.
        """
        self._slot = slot
        self._device_id = device_id
        self._run_id = run_id
        self._actor = actor
        self._policies = policies
        self._chooser = chooser
        self._spool = spool
        self._uplink = uplink
        self._downlink = downlink
        self._appetite = appetite
        self._paced = paced
        self._queue = queue
        self._gradients = gradients
        self._started_s = time.monotonic()
        self._before_s = self._started_s
        self._before_steps = 0
        self._reports = 0

    def telemetry(self) -> pb.Telemetry:
        """The report as of now."""
        return telemetry(self._device_id, self._run_id, self._vitals(), now_s=time.time())

    def _vitals(self) -> Vitals:
        counters, policy = self._actor.counters, self._policies.current
        now_s, steps = time.monotonic(), counters.env_steps
        elapsed_s = max(now_s - self._before_s, 1e-9)
        rate = (steps - self._before_steps) / elapsed_s
        self._before_s, self._before_steps = now_s, steps
        self._reports += 1
        pushed = Pushed() if self._gradients is None else self._gradients.counters
        return Vitals(
            uptime_s=now_s - self._started_s,
            env_steps=steps,
            episodes=counters.episodes,
            deadline_misses=counters.deadline_misses,
            steps_per_s=rate,
            control_hz_achieved=rate / counters.envs if self._paced else 0.0,
            active_version=policy.version if policy is not None else 0,
            active_digest=policy.digest if policy is not None else b"",
            swaps=self._policies.swaps,
            swap_ms=tuple(self._policies.swap_ms),
            policy_rejections=sum(self._policies.rejections.values()),
            rss_bytes=rss_bytes(),
            bytes_up=self._uplink.counters.bytes_up + pushed.bytes_up,
            bytes_down=self._downlink.bytes_down + pushed.bytes_down,
            spool_bytes=self._spool.size_bytes,
            resent_chunks=self._uplink.counters.resent_chunks,
            learner_ack_age_s=self._uplink.ack_age_s(),
            ledger=page(self._spool.ledger(), self._reports),
            choice=None
            if policy is None
            else replace(self._chooser.choice, precision=policy.precision),
            wanted_steps_per_s=0.0 if self._paced else self._appetite.steps_per_s,
            oldest_version=self._appetite.oldest_version,
            updates_pushed=pushed.pushed,
            updates_applied=pushed.applied,
            gradient_chunks_dropped=0 if self._queue is None else self._queue.dropped,
            slot=self._slot(),
        )
