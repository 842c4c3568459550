"""The parameter server of a relay: the learner's own, and what it cannot answer passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import grpc

from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_source import PolicySource
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.refresh import Offer
from cloud_learner.downlink.updates import TakesUpdates
from cloud_learner.relay.active_reports import MAX_DEVICES, ActiveReport
from cloud_learner.serving.grpc_server import Context, refuse
from shoal.v1 import parameter_server_pb2 as pb


class RelayServer(ParameterServer):
    """Serves `shoal.v1.ParameterServer` from what a relay holds.

    Reports of what devices act with are handed on, and so are gradients.

        server = RelayServer(store, fleet="reef", note_active=reports.note)
        server.announce(store.accept(bundle, fetch_graph))
    """

    def __init__(
        self,
        policies: PolicySource,
        *,
        fleet: str,
        note_active: Callable[[ActiveReport], object],
        gradients: TakesUpdates | None = None,
    ) -> None:
        """Offers the newest version from the start.

        Args:
            policies: Where versions and graphs come from.
            fleet: The fleet served.
            note_active: Told what a device acts with.
            gradients: Passes gradients on.
        """
        super().__init__(policies, fleet=fleet, gradients=gradients)
        self._note_active = note_active
        self._assigned: dict[str, int] = {}  # versions by device, the latest last
        self._candidates: dict[int, Offer] = {}

    def assign(self, device_id: str, published: Published | None) -> None:
        """Offers a device a policy that is rolled out to it; None: what the others have.

        The newest goes before it again once it is newer still: then that rollout is over.
        """
        before = self._assigned.pop(device_id, None)
        if published is not None:
            while len(self._assigned) >= MAX_DEVICES:
                del self._assigned[next(iter(self._assigned))]
            self._assigned[device_id] = published.version
            if published.version not in self._candidates:
                self._candidates[published.version] = Offer(published, self._policies)
        if before != self._assigned.get(device_id):
            wanted = set(self._assigned.values())
            self._candidates = {v: o for v, o in self._candidates.items() if v in wanted}
            for watcher in self._watchers.get(device_id, ()):
                watcher.wake.set()

    def _offer_to(self, device_id: str) -> Offer | None:
        newest = super()._offer_to(device_id)
        candidate = self._candidates.get(self._assigned.get(device_id, 0))
        if candidate is None or (newest is not None and newest.version > candidate.version):
            return newest
        return candidate

    async def ReportActive(  # noqa: N802 - the name in the proto
        self, request: pb.ReportActiveRequest, context: Context
    ) -> pb.ReportActiveResponse:
        """Takes what a device acts with, to tell it upstream."""
        response = await super().ReportActive(request, context)
        self._note_active(
            ActiveReport(request.device_id, request.run_id, request.version, request.digest)
        )
        return response


async def refuse_operators(context: Context) -> NoReturn:
    """Ends a call that only the learner answers."""
    problem = "this is a relay: it serves devices; ask the learner itself"
    await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, problem)
