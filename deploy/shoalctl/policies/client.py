"""Asks a learner to keep policies, as its operator: the `Policies` service over mutual TLS."""

from __future__ import annotations

from typing import Self

from shoal.identity import Identity
from shoal.v1 import policies_pb2 as pb
from shoal.v1.policies_pb2_grpc import PoliciesStub
from shoalctl.fleet.client import FleetClient


class PolicyClient(FleetClient):
    """What an operator does about the policies of one fleet; every call raises ShoalError.

    with PolicyClient("learner.example.org:50051", Identity.load(path), timeout_s=10) as fleet:
        fleet.pin(7, pinned=True, reason="the best so far", dry_run=False)
    """

    def __init__(self, server: str, identity: Identity, *, timeout_s: float) -> None:
        """As `FleetClient`."""
        super().__init__(server, identity, timeout_s=timeout_s)
        self._policies = PoliciesStub(self._channel)

    def __enter__(self) -> Self:
        """Connects at the first question."""
        return self

    def pin(self, version: int, *, pinned: bool, reason: str, dry_run: bool) -> pb.PolicyPin:
        """Pins a version, or unpins it; 0: the newest."""
        request = pb.PinPolicyRequest(
            fleet=self.fleet, version=version, pinned=pinned, reason=reason, dry_run=dry_run
        )
        return self._ask(self._policies.PinPolicy, request, pb.PolicyPin)

    def snapshot(self, name: str, *, dry_run: bool) -> pb.Snapshot:
        """Has the learner write a checkpoint under a name; empty: one of its own."""
        request = pb.TakeSnapshotRequest(fleet=self.fleet, name=name, dry_run=dry_run)
        return self._ask(self._policies.TakeSnapshot, request, pb.Snapshot)
