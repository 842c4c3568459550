"""Samples of what an operator does about policies, and of what says so; see `samples.py`."""

from __future__ import annotations

from google.protobuf.message import Message

from shoal.v1 import device_pb2, fleet_pb2, policies_pb2


def policies_samples(telemetry: device_pb2.Telemetry) -> dict[str, Message]:
    dynamic = device_pb2.Telemetry()
    dynamic.CopyFrom(telemetry)
    dynamic.active_precision = "int8_dynamic"
    dynamic.precision_reason = "measured for 8 environments: int8 20.5 µs, int8_dynamic 9.75 µs"
    dynamic.int8_us, dynamic.int8_dynamic_us = 20.5, 9.75
    return {
        "Telemetry.dynamic": dynamic,
        "PolicyInfo.pinned": fleet_pb2.PolicyInfo(version=7, updates=96, pinned=True),
        "PinPolicyRequest": policies_pb2.PinPolicyRequest(
            fleet="reef", version=7, pinned=True, reason="the best so far", dry_run=True
        ),
        "PolicyPin": policies_pb2.PolicyPin(
            version=7, pinned=True, changed=True, versions=[3, 7], max_versions=64
        ),
        "TakeSnapshotRequest": policies_pb2.TakeSnapshotRequest(
            fleet="reef", name="before-the-storm", dry_run=True
        ),
        "Snapshot": policies_pb2.Snapshot(
            name="before-the-storm",
            path="/var/lib/shoal/snapshots/before-the-storm.checkpoint",
            bytes=81_920,
            updates=1536,
            policy_version=97,
            env_id="CartPole-v1",
        ),
    }
