"""Asks a learner for rollouts, as its operator: the `Rollouts` service over mutual TLS."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import grpc

from shoal.errors import ConnectionFailed
from shoal.identity import Identity
from shoal.v1 import rollout_pb2 as pb
from shoal.v1.rollout_pb2_grpc import RolloutsStub
from shoalctl.fleet.client import FleetClient

PART_BYTES: Final = 48 * 1024
"""Of a bundle that is sent: requests of over 64 KiB are refused before they are read."""


MAX_AWAY: Final = 60
AWAY_S: Final = 1.0
"""How often a learner that is away is asked again by a watch, and how long after."""


class RolloutClient(FleetClient):
    """An operator's rollouts in one fleet; every call raises ShoalError.

    with RolloutClient("learner.example.org:50051", Identity.load(path), timeout_s=10) as fleet:
        fleet.rollouts()
    """

    def __init__(self, server: str, identity: Identity, *, timeout_s: float) -> None:
        """As `FleetClient`."""
        super().__init__(server, identity, timeout_s=timeout_s)
        self._rollouts = RolloutsStub(self._channel)

    def __enter__(self) -> Self:
        """Connects at the first question."""
        return self

    def start(self, plan: pb.RolloutPlan, *, dry_run: bool) -> pb.Rollout:
        """Starts one, or says what it would begin with."""
        request = pb.StartRolloutRequest(fleet=self.fleet, plan=plan, dry_run=dry_run)
        return self._ask(self._rollouts.StartRollout, request, pb.Rollout)

    def rollouts(self) -> pb.ListRolloutsResponse:
        """Every one, the newest first."""
        request = pb.ListRolloutsRequest(fleet=self.fleet)
        return self._ask(self._rollouts.ListRollouts, request, pb.ListRolloutsResponse)

    def command(self, rollout_id: int, command: pb.RolloutCommand, reason: str) -> pb.Rollout:
        """Pauses, resumes or aborts one; 0: the newest that has not ended."""
        request = pb.CommandRolloutRequest(
            fleet=self.fleet, rollout_id=rollout_id, command=command, reason=reason
        )
        return self._ask(self._rollouts.CommandRollout, request, pb.Rollout)

    def rollout(self, rollout_id: int) -> pb.Rollout:
        """One, with all of its devices; 0: the newest."""
        request = pb.WatchRolloutRequest(fleet=self.fleet, rollout_id=rollout_id)
        call = self._rollouts.WatchRollout(request, timeout=self._timeout_s)
        try:
            first: pb.Rollout = next(call)
        except grpc.RpcError as error:
            self._explain(error)
        call.cancel()
        return first

    def watch(self, rollout_id: int, *, lost: Callable[[str], object]) -> Iterator[pb.Rollout]:
        """One, whenever it changed, until it ended; a learner that restarts is waited for.

        Args:
            rollout_id: 0: the newest.
            lost: Told why, when the learner cannot be reached.
        """
        away = 0
        while True:
            request = pb.WatchRolloutRequest(fleet=self.fleet, rollout_id=rollout_id)
            try:
                for rollout in self._rollouts.WatchRollout(request):
                    rollout_id, away = rollout.rollout_id, 0
                    yield rollout
            except grpc.RpcError as error:
                try:
                    self._explain(error)
                except ConnectionFailed as failed:
                    if not rollout_id or away >= MAX_AWAY:
                        raise
                    lost(str(failed))
                away += 1
                time.sleep(AWAY_S)
            else:
                return

    def add_bundle(
        self, path: Path, *, timeout_s: float, sent: Callable[[int], object]
    ) -> pb.AgentBundle:
        """Puts a bundle where devices can fetch it.

        Args:
            path: The file.
            timeout_s: For all of it.
            sent: Told how many bytes are on their way.
        """

        def parts() -> Iterator[pb.AddBundlePart]:
            total, offset = path.stat().st_size, 0
            with path.open("rb") as file:
                while piece := file.read(PART_BYTES):
                    part = pb.BundlePart(total_bytes=total, offset=offset, data=piece)
                    yield pb.AddBundlePart(fleet=self.fleet, part=part)
                    offset += len(piece)
                    sent(offset)

        try:
            added: pb.AgentBundle = self._rollouts.AddBundle(parts(), timeout=timeout_s)
        except grpc.RpcError as error:
            self._explain(error)
        return added

    def bundles(self) -> pb.ListBundlesResponse:
        """Every bundle that devices can fetch."""
        request = pb.ListBundlesRequest(fleet=self.fleet)
        return self._ask(self._rollouts.ListBundles, request, pb.ListBundlesResponse)
