"""What a policy rollout does to the policy log and the parameter server.

Devices only go up in versions. So what is rolled out is published again under a number above all
others, and what an aborted rollout gives back as well: old tensors under a new version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.watcher import Held
from cloud_learner.rollout.rollout import PolicyVersions, Progress, Rollout, State
from shoal.errors import ConfigError, PolicyLogError


def choose_versions(log: PolicyLog, version: int) -> PolicyVersions:
    """What is rolled out, and what the other devices are held at: the newest that differs from it.

    Raises:
        ConfigError: It is not kept, or there is no other.
    """
    infos = log.list()
    source = next((each.manifest for each in infos if each.manifest.version == version), None)
    if source is None:
        kept = [each.manifest.version for each in infos]
        there = f"kept are {kept[-1]} to {kept[0]}" if kept else "none is published yet"
        raise ConfigError(f"policy version {version} is not here: {there}; see `shoal policy ls`")
    others = (each.manifest for each in infos if each.manifest.digest != source.digest)
    baseline = next(others, None)
    if baseline is None:
        raise ConfigError(
            f"policy version {version} is the only one: there is nothing to hold the other devices "
            "at, or to go back to; wait for the next"
        )
    newest = infos[0].manifest.version
    return PolicyVersions(
        source=version,
        baseline_source=baseline.version,
        # What is newest is what devices have: it needs no other number.
        baseline=baseline.version if baseline.version == newest == log.highest_version else 0,
    )


class PolicyRollouts:
    """Publishes what policy rollouts need, and holds devices at it.

    policies = PolicyRollouts(policy_log, parameter_server, note=versions.add)
    versions = policies.publish(rollout)       # in a thread: it writes and syncs
    policies.hold(rollout, policies.read(rollout))
    policies.give_back(rollout)                # in a thread, once it was aborted
    policies.release()
    """

    def __init__(
        self, log: PolicyLog, server: ParameterServer, *, note: Callable[[Published], object]
    ) -> None:
        """Holds nothing yet.

        Args:
            log: Of the versions.
            server: Offers them to devices.
            note: Told of each version that is published, on the event loop: chunks may be of it.
        """
        self.log = log
        self._server = server
        self._note = note
        self._rollout: Rollout | None = None

    def publish(self, rollout: Rollout) -> PolicyVersions:
        """Publishes baseline and candidate, as far as they are not yet. For a thread.

        Raises:
            PolicyLogError: The disk refuses.
        """
        versions, name = rollout.versions, f"rollout {rollout.rollout_id}"
        if not versions.baseline:
            baseline = self.log.publish_again(versions.baseline_source, f"{name}: baseline")
            versions = replace(versions, baseline=baseline.version)
        if not versions.candidate:
            candidate = self.log.publish_again(versions.source, f"{name}: candidate")
            versions = replace(versions, candidate=candidate.version)
        return versions

    def give_back(self, rollout: Rollout) -> Published | None:
        """Publishes the baseline above the candidate. For a thread.

        Returns:
            It; None if there is nothing to be undone.

        Raises:
            PolicyLogError: The disk refuses.
        """
        name = f"rollout {rollout.rollout_id}"
        infos = self.log.list()
        mine = [each for each in infos if each.manifest.reason.startswith(f"{name}: ")]
        if not mine and not rollout.versions.candidate:
            return None
        wanted = (rollout.versions.baseline_source, rollout.versions.baseline)
        bad = {each.manifest.digest for each in mine if each.manifest.reason.endswith("candidate")}
        others = [each.manifest.version for each in infos if each.manifest.digest not in bad]
        for version in (*wanted, *others):  # what it was, unless that is damaged by now
            if version and self.log.get(version) is not None:
                return self.log.publish_again(version, f"{name}: back, {rollout.reason}"[:200])
        return None

    def read(self, rollout: Rollout) -> dict[int, Published]:
        """The versions that devices may get. For a thread.

        Raises:
            PolicyLogError: One of them cannot be read.
        """
        found: dict[int, Published] = {}
        for version in {held_version(rollout), rollout.versions.candidate} - {0}:
            published = self.log.get(version)
            if published is None:
                raise PolicyLogError(
                    f"policy version {version} of rollout {rollout.rollout_id} is damaged"
                )
            found[version] = published
        return found

    def hold(self, rollout: Rollout, published: dict[int, Published]) -> None:
        """Has devices get what the rollout says now; to be called again when it changed."""
        for each in published.values():
            self._note(each)
        self._rollout = rollout
        self._server.hold(Held(self._version_of, published))

    def release(self, published: Published | None = None) -> None:
        """Has devices follow the newest again, which may be what is given back."""
        if published is not None:
            self._note(published)
            self._server.announce(published)
        self._rollout = None
        self._server.hold(None)

    def _version_of(self, device_id: str) -> int:
        rollout = self._rollout
        return 0 if rollout is None else version_of(rollout, device_id)


def version_of(rollout: Rollout, device_id: str) -> int:
    """The version that a device may have while a rollout goes on."""
    member = rollout.members.get(device_id)
    follows = rollout.state in (State.ACTIVE, State.PAUSED)
    if follows and member is not None and member.progress is not Progress.FAILED:
        return rollout.versions.candidate
    return held_version(rollout)


def held_version(rollout: Rollout) -> int:
    """What devices outside of its waves have."""
    return rollout.versions.baseline or rollout.versions.baseline_source
