"""Samples of the messages of rollouts; see `samples.py`."""

from __future__ import annotations

from google.protobuf.message import Message
from strategies import DIGEST, RUN_ID

from shoal.v1 import rollout_pb2 as pb


def rollout_samples() -> dict[str, Message]:
    """Every message of the service by name."""
    waves = [pb.RolloutWave(devices=1), pb.RolloutWave(share=0.1), pb.RolloutWave(share=1.0)]
    plan = pb.RolloutPlan(
        kind=pb.ROLLOUT_KIND_POLICY,
        version="120",
        waves=waves,
        episodes=3,
        wave_timeout_s=600.0,
        max_failures=0.05,
        min_failures=1,
        devices="pi-*",
        reason="it walks further",
    )
    member = pb.RolloutMember(
        device_id="pi-1",
        wave=1,
        progress=pb.ROLLOUT_PROGRESS_SUCCEEDED,
        reason="acted 3 episodes",
        episodes=3,
        age_s=12.5,
    )
    note = pb.RolloutNote(at_s=4.5, name="wave_2_opened", reason="1 of 1 devices acted on it")
    rollout = pb.Rollout(
        rollout_id=7,
        plan=plan,
        state=pb.ROLLOUT_STATE_ACTIVE,
        reason="it walks further",
        wave=2,
        members=[member],
        history=[note],
        candidate_version=131,
        baseline_version=130,
        undo_version=0,
        ran_s=4.5,
        created_unix_ms=1_700_000_000_000,
        devices=40,
        asked=4,
        succeeded=1,
        failed=1,
        timed_out=1,
    )
    bundle = pb.AgentBundle(
        version="0.2.0",
        arch="aarch64",
        python="3.11",
        digest=DIGEST,
        bundle_bytes=53_000_000,
        bundle_digest=DIGEST[::-1],
    )
    part = pb.BundlePart(total_bytes=9, offset=3, data=b"middle")
    policy = pb.PolicyDirective(rollout_id=7, version=131, digest=DIGEST, episodes=3)
    agent = pb.AgentDirective(rollout_id=8, bundle=bundle, reason="rollout 8, wave 2 of 3")
    return {
        "RolloutWave": waves[1],
        "RolloutPlan": plan,
        "RolloutMember": member,
        "RolloutNote": note,
        "Rollout": rollout,
        "StartRolloutRequest": pb.StartRolloutRequest(fleet="farm", plan=plan, dry_run=True),
        "ListRolloutsRequest": pb.ListRolloutsRequest(fleet="farm"),
        "ListRolloutsResponse": pb.ListRolloutsResponse(rollouts=[rollout]),
        "WatchRolloutRequest": pb.WatchRolloutRequest(fleet="farm", rollout_id=7),
        "CommandRolloutRequest": pb.CommandRolloutRequest(
            fleet="farm", rollout_id=7, command=pb.ROLLOUT_COMMAND_ABORT, reason="it limps"
        ),
        "AgentBundle": bundle,
        "BundlePart": part,
        "AddBundlePart": pb.AddBundlePart(fleet="farm", part=part),
        "ListBundlesRequest": pb.ListBundlesRequest(fleet="farm"),
        "ListBundlesResponse": pb.ListBundlesResponse(bundles=[bundle]),
        "WatchDirectiveRequest": pb.WatchDirectiveRequest(
            fleet="farm", device_id="pi-1", run_id=RUN_ID
        ),
        "PolicyDirective": policy,
        "AgentDirective": agent,
        "Directive": pb.Directive(policy=policy, agent=agent),
        "GetBundleRequest": pb.GetBundleRequest(fleet="farm", digest=DIGEST, offset=65_536),
        "ReportOutcomeRequest": pb.ReportOutcomeRequest(
            fleet="farm",
            device_id="pi-1",
            run_id=RUN_ID,
            rollout_id=7,
            progress=pb.ROLLOUT_PROGRESS_FAILED,
            digest=DIGEST,
            episodes=1,
            reason="refused it: self_test",
        ),
        "ReportOutcomeResponse": pb.ReportOutcomeResponse(),
    }
