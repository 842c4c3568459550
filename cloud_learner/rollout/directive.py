"""What each device is told to run: read off the rollouts, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cloud_learner.rollout.bundles import BundleStore, StoredBundle
from cloud_learner.rollout.plan import Kind
from cloud_learner.rollout.rollout import Progress, Rollout, State
from shoal.v1 import device_pb2
from shoal.v1 import rollout_pb2 as pb


class Statuses(Protocol):
    """Who knows devices; `cloud_learner.fleet.fleet.Fleet` does."""

    def status_of(self, device_id: str) -> device_pb2.Status | None:
        """The last birth or death of one."""


class Directives:
    """Says what a device is to run now.

    directives = Directives(lambda: rollouts.all, bundles, fleet)
    directives.of("pi-1", digest_of=lambda version: digest)
    """

    def __init__(
        self, rollouts: Callable[[], Sequence[Rollout]], bundles: BundleStore, devices: Statuses
    ) -> None:
        self._rollouts = rollouts
        self._bundles = bundles
        self._devices = devices

    def of(self, device_id: str, *, digest_of: Callable[[int], bytes]) -> pb.Directive:
        """The directive of a device; one that says nothing asks for nothing.

        Args:
            device_id: Which.
            digest_of: The digest of a policy version.
        """
        rollouts = self._rollouts()
        directive = pb.Directive()
        policy = next((each for each in rollouts if each.plan.kind is Kind.POLICY), None)
        if policy is not None and follows(policy, device_id):
            directive.policy.CopyFrom(
                pb.PolicyDirective(
                    rollout_id=policy.rollout_id,
                    version=policy.versions.candidate,
                    digest=digest_of(policy.versions.candidate),
                    episodes=policy.plan.episodes,
                )
            )
        agent = self._agent(device_id, rollouts)
        if agent is not None:
            directive.agent.CopyFrom(agent)
        return directive

    def bundle_of(self, rollout: Rollout, device_id: str) -> StoredBundle | None:
        """The bundle that a rollout of an agent has for a device."""
        status = self._devices.status_of(device_id)
        return None if status is None else self._bundles.for_device(rollout.plan.version, status)

    def _agent(self, device_id: str, rollouts: Sequence[Rollout]) -> pb.AgentDirective | None:
        """Of the newest that the device was asked in; one that is through asks no further."""
        for rollout in rollouts:
            member = rollout.members.get(device_id)
            if rollout.plan.kind is not Kind.AGENT or member is None:
                continue
            through = rollout.state is State.PROMOTED and member.progress is Progress.SUCCEEDED
            gone = member.progress in (Progress.FAILED, Progress.LEFT)
            bundle = self.bundle_of(rollout, device_id)
            if through or gone or bundle is None:
                return None  # it has it, or went back and is to stay there
            why = f"rollout {rollout.rollout_id}"
            back = rollout.state is State.ABORTED
            why += f" was aborted: {rollout.reason}" if back else ""
            why += "" if back else f", wave {member.wave + 1} of {len(rollout.plan.waves)}"
            return pb.AgentDirective(
                rollout_id=rollout.rollout_id,
                bundle=bundle_pb(bundle),
                reason=why,
                go_back=back,
            )
        return None


def follows(rollout: Rollout, device_id: str) -> bool:
    """Whether a device has what is rolled out, and is asked about it."""
    member = rollout.members.get(device_id)
    if member is None or rollout.state not in (State.ACTIVE, State.PAUSED):
        return False
    return member.progress is not Progress.FAILED


def bundle_pb(bundle: StoredBundle) -> pb.AgentBundle:
    """A bundle as a message."""
    return pb.AgentBundle(
        version=bundle.version,
        arch=bundle.arch,
        python=bundle.python,
        digest=bundle.digest,
        bundle_bytes=bundle.bundle_bytes,
        bundle_digest=bundle.bundle_digest,
    )
