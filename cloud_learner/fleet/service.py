"""What an operator reads of a fleet, over gRPC: `shoal.v1.Fleet`."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Protocol

import grpc
import grpc.aio

from cloud_learner.downlink.callers import OPERATORS
from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.serving.grpc_server import Context, peer_name, refuse, require_fleet
from shoal.policy_delta import Base
from shoal.v1 import fleet_pb2 as pb
from shoal.v1 import fleet_pb2_grpc as rpc

DEFAULT_INTERVAL_MS = 500
"""Between two states of `WatchTraining` when the caller leaves it to the server."""
MIN_INTERVAL_MS = 50
MAX_INTERVAL_MS = 60_000
MAX_TRAINING_WATCHES = 64
"""Training watches at a time; more are refused, so that views never cost training its time."""


class FleetView(Protocol):
    """What the learner knows of its devices; `cloud_learner.fleet.fleet.Fleet` is one.

    Every message is made new for the caller, who may change it.
    """

    def devices(self) -> Sequence[pb.Device]:
        """Every device, sorted by id, without `bytes_down_sent`."""

    def describe(self, device_id: str) -> pb.DescribeDeviceResponse | None:
        """One device and its events, newest first; None when it was never heard of."""

    def audit(self) -> pb.AuditResponse:
        """What became of every chunk: in total and by device."""

    def training(self) -> pb.Training:
        """The state of training, without `bytes_down` and `bytes_down_fp32`."""

    def staleness_of(self, version: int) -> float | None:
        """The staleness gap of a version in nats; None when no batch was of it alone."""


class FleetService(rpc.FleetServicer):
    """Serves `shoal.v1.Fleet` to operators and the learner, and to nobody else.

    Everything runs on the event loop of the server; the view is asked there too.

        service = FleetService(fleet_view, policy_log, parameter_server, fleet="reef")
    """

    def __init__(
        self,
        view: FleetView,
        policy_log: PolicyLog,
        parameter_server: ParameterServer,
        *,
        fleet: str,
        task_of: Callable[[str], str] = lambda _: "",
        pinned: Callable[[], Collection[int]] = frozenset,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Joins what the view, the log and the parameter server know.

        Args:
            view: Devices, audit and training.
            policy_log: Published versions.
            parameter_server: Bytes sent, by device.
            fleet: The fleet served.
            task_of: What a device works on, for people; empty: nothing was handed to it.
            pinned: The versions that no retention deletes.
            clock: Wall clock in seconds: the age of a policy, for people only.
        """
        self._view = view
        self._log = policy_log
        self._parameter_server = parameter_server
        self._fleet = fleet
        self._task_of = task_of
        self._pinned = pinned
        self._clock = clock
        self._stopping = asyncio.Event()
        self._watches = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_FleetServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """Ends every training watch; callers see UNAVAILABLE."""
        self._stopping.set()

    @property
    def training_watches(self) -> int:
        """How many views watch the training."""
        return self._watches

    # -------------------------------------------------------------------------------- the calls

    async def ListDevices(  # noqa: N802 - the name in the proto
        self, request: pb.ListDevicesRequest, context: Context
    ) -> pb.ListDevicesResponse:
        """Every device."""
        await require_operator(context, request.fleet, self._fleet)
        devices = [self._complete(device) for device in self._view.devices()]
        return pb.ListDevicesResponse(devices=devices)

    async def DescribeDevice(  # noqa: N802 - the name in the proto
        self, request: pb.DescribeDeviceRequest, context: Context
    ) -> pb.DescribeDeviceResponse:
        """One device and its events."""
        await require_operator(context, request.fleet, self._fleet)
        found = self._view.describe(request.device_id)
        if found is None:
            await refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"no device {request.device_id[:80]!r} in fleet {self._fleet!r} was heard of: "
                "`shoal devices ls` lists them",
            )
        self._complete(found.device)
        return found

    async def ListPolicies(  # noqa: N802 - the name in the proto
        self, request: pb.ListPoliciesRequest, context: Context
    ) -> pb.ListPoliciesResponse:
        """The versions kept, newest first."""
        await require_operator(context, request.fleet, self._fleet)
        active: dict[int, list[str]] = defaultdict(list)
        for device in self._view.devices():
            active[self._active(device).version].append(device.device_id)
        now_s, pinned = self._clock(), self._pinned()
        policies = [
            pb.PolicyInfo(
                version=info.manifest.version,
                digest=info.manifest.digest,
                graph_digest=info.manifest.graph_digest,
                updates=info.manifest.updates,
                precision=info.manifest.precision,
                kl_quantization=info.manifest.kl_quantization,
                created_unix_ms=info.manifest.created_unix_ms,
                bundle_bytes=info.bundle_bytes,
                devices_active=len(active.get(info.manifest.version, ())),
                reason=info.manifest.reason,
                age_s=max(0.0, now_s - info.manifest.created_unix_ms / 1000),
                agreement=info.manifest.agreement,
                kl_staleness=self._view.staleness_of(info.manifest.version),
                delegation_generation=info.delegation.generation if info.delegation else 0,
                delegation_not_after_unix_s=info.delegation.not_after_s if info.delegation else 0,
                tensors_bytes=info.manifest.tensors_bytes,
                fp32_bytes=info.fp32_bytes,
                active_devices=active.get(info.manifest.version, ()),
                pinned=info.manifest.version in pinned,
            )
            for info in self._log.list()
        ]
        return pb.ListPoliciesResponse(policies=policies)

    async def Audit(  # noqa: N802 - the name in the proto
        self, request: pb.AuditRequest, context: Context
    ) -> pb.AuditResponse:
        """What became of every chunk."""
        await require_operator(context, request.fleet, self._fleet)
        return self._view.audit()

    async def WatchTraining(  # noqa: N802 - the name in the proto
        self, request: pb.WatchTrainingRequest, context: Context
    ) -> AsyncIterator[pb.Training]:
        """The state of training, whole each time, at the caller's interval."""
        await require_operator(context, request.fleet, self._fleet)
        if self._watches >= MAX_TRAINING_WATCHES:
            await refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_TRAINING_WATCHES} views watch the training already: close one",
            )
        interval_ms = request.interval_ms or DEFAULT_INTERVAL_MS
        interval_s = min(max(interval_ms, MIN_INTERVAL_MS), MAX_INTERVAL_MS) / 1000
        self._watches += 1
        try:
            while not self._stopping.is_set():
                yield self._training()
                await _wait(self._stopping, interval_s)
        finally:
            self._watches -= 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is stopping")

    # --------------------------------------------------------------------------------- the rules

    def _complete(self, device: pb.Device) -> pb.Device:
        device.task = self._task_of(device.device_id)
        device.bytes_down_sent = self._parameter_server.traffic(device.device_id).bytes_down
        active = self._active(device)
        device.active_version, device.active_digest = active.version, active.digest
        return device

    def _active(self, device: pb.Device) -> Base:
        """What a device acts with: reported at once, and in telemetry some time later."""
        active = self._parameter_server.active(device.device_id)
        if active is None or active.run_id not in {device.status.run_id, device.telemetry.run_id}:
            return Base(device.telemetry.active_version, device.telemetry.active_digest)
        return active.base

    def _training(self) -> pb.Training:
        training = self._view.training()
        total = self._parameter_server.total_traffic()
        training.bytes_down = total.bytes_down
        training.bytes_down_fp32 = total.bytes_down_fp32
        return training


async def require_operator(context: Context, asked: str, served: str) -> None:
    """Ends the call unless an operator of the fleet that is served here makes it."""
    await require_operator_name(context)
    await require_fleet(context, asked, served)


async def require_operator_name(context: Context) -> None:
    """Ends the call unless its certificate is an operator's."""
    name = peer_name(context)
    if name not in OPERATORS:
        await refuse(
            context,
            grpc.StatusCode.PERMISSION_DENIED,
            f"the certificate is of {name!r}: only an operator's may read and steer the fleet; "
            "give --identity the operator's directory",
        )


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
