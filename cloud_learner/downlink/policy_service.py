"""What an operator does about published policies, over gRPC: `shoal.v1.Policies`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import grpc
import grpc.aio

from cloud_learner.downlink.pins import DAMAGED, Pins, check_number
from cloud_learner.downlink.policy_source import PolicyInfo
from cloud_learner.fleet.service import require_operator
from cloud_learner.fleet.teller import Teller
from cloud_learner.serving.grpc_server import Context, peer_name, refuse
from cloud_learner.uplink.arrivals import LEARNER
from shoal.errors import CheckpointError, ConfigError, PolicyLogError, PolicyNotKept
from shoal.v1 import device_pb2
from shoal.v1 import policies_pb2 as pb
from shoal.v1 import policies_pb2_grpc as rpc

MAX_REASON: Final = 300


class Told(Teller, Protocol):
    """Who keeps events, and shows conditions; `cloud_learner.fleet.fleet.Fleet` does."""

    def clear_condition(self, name: str) -> None:
        """Says of a lasting problem that it is over."""


class SnapshotTaker(Protocol):
    """Who saves what is trained; `cloud_learner.training.snapshots.Snapshots` does."""

    async def take(self, name: str, *, dry_run: bool) -> pb.Snapshot:
        """Saves it as of the next moment that it is consistent.

        Raises:
            ConfigError: There is nothing yet, or the name is taken or none.
            CheckpointError: The disk refuses.
        """


class PolicyService(rpc.PoliciesServicer):
    """Serves `shoal.v1.Policies` to operators. Used from the event loop.

    service = PolicyService(policy_log.list, pins, snapshots, fleet_view, fleet="reef")
    """

    def __init__(
        self,
        kept: Callable[[], tuple[PolicyInfo, ...]],
        pins: Pins,
        snapshots: SnapshotTaker,
        teller: Told,
        *,
        fleet: str,
    ) -> None:
        """Changes nothing yet.

        Args:
            kept: The versions there are, newest first.
            pins: Those that retention leaves alone.
            snapshots: Takes them.
            teller: Keeps what was done, and who did it.
            fleet: The fleet served.
        """
        self._kept = kept
        self._pins = pins
        self._snapshots = snapshots
        self._teller = teller
        self._fleet = fleet
        self._changing = asyncio.Lock()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_PoliciesServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """There are none."""

    async def PinPolicy(  # noqa: N802 - the name in the proto
        self, request: pb.PinPolicyRequest, context: Context
    ) -> pb.PolicyPin:
        """Pins a version, or unpins it."""
        await require_operator(context, request.fleet, self._fleet)
        try:
            async with self._changing:
                return await self._pin(request, peer_name(context))
        except ConfigError as error:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except PolicyNotKept as error:
            await refuse(context, grpc.StatusCode.NOT_FOUND, str(error))
        except PolicyLogError as error:
            await refuse(context, grpc.StatusCode.INTERNAL, str(error))

    async def TakeSnapshot(  # noqa: N802 - the name in the proto
        self, request: pb.TakeSnapshotRequest, context: Context
    ) -> pb.Snapshot:
        """Writes a checkpoint under a name, now."""
        await require_operator(context, request.fleet, self._fleet)
        try:
            snapshot = await self._snapshots.take(request.name, dry_run=request.dry_run)
        except ConfigError as error:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except CheckpointError as error:
            await refuse(context, grpc.StatusCode.INTERNAL, str(error))
        if not request.dry_run:
            self._tell(
                "snapshot_taken",
                f"{snapshot.path}, of {snapshot.updates} updates",
                by=peer_name(context),
                snapshot=snapshot.name,
            )
        return snapshot

    async def _pin(self, request: pb.PinPolicyRequest, by: str) -> pb.PolicyPin:
        version = self._known(request.version)
        pinned = self._pins.versions() & self._versions()  # what is gone takes nobody's place
        wanted = pinned | {version} if request.pinned else pinned - {version}
        if request.pinned:
            check_number(wanted, max_pins=self._pins.max_pins)
        changes = wanted != pinned or bool(self._pins.damage)
        if changes and not request.dry_run:
            await asyncio.to_thread(self._pins.put, wanted)
            self._teller.clear_condition(DAMAGED)
            if request.pinned and version not in self._versions():
                await asyncio.to_thread(self._pins.put, pinned)
                raise ConfigError(
                    f"policy v{version} was just deleted: it can't be pinned any more"
                )
            reason = f": {request.reason[:MAX_REASON]}" if request.reason else ""
            what = "pinned" if request.pinned else "unpinned"
            self._tell(
                f"policy_{what}", f"v{version} is {what}{reason}", by=by, version=str(version)
            )
        return pb.PolicyPin(
            version=version,
            pinned=request.pinned,
            changed=wanted != pinned,
            versions=sorted(wanted),
            max_versions=self._pins.max_pins,
        )

    def _known(self, version: int) -> int:
        """The version that is meant.

        Raises:
            PolicyNotKept: It is not there; the nearest is named.
        """
        versions = self._versions()
        if not versions:
            raise PolicyNotKept("no policy was published yet")
        wanted = version or max(versions)
        if wanted not in versions:
            nearest = min(versions, key=lambda one: abs(one - wanted))
            raise PolicyNotKept(
                f"no policy v{wanted}: v{min(versions)} to v{max(versions)} are kept, the nearest "
                f"is v{nearest}; `shoal policy ls` lists them"
            )
        return wanted

    def _versions(self) -> frozenset[int]:
        return frozenset(info.manifest.version for info in self._kept())

    def _tell(self, name: str, message: str, *, by: str, **fields: str) -> None:
        severity = device_pb2.SEVERITY_INFO
        self._teller.record(
            LEARNER, name, f"{message}, by {by}", severity=severity, by=by, **fields
        )
