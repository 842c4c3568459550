"""Makes policy versions of the learner's weights, and offers them to the devices."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cloud_learner.algorithms.interface import DataKind
from cloud_learner.config import TrainingConfig
from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.version_jumps import VersionJumps
from cloud_learner.fleet.fleet import Fleet
from cloud_learner.models.policy import Policy
from cloud_learner.quantization.sample import Sample, sample_of
from cloud_learner.training.brain import Brain
from cloud_learner.training.experience import Batch, Fresh, Likeness, Transitions
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uninterrupted import in_thread_to_the_end
from cloud_learner.uplink.admission import KnownVersion, KnownVersions
from cloud_learner.uplink.arrivals import LEARNER
from cloud_learner.uplink.throttle import Throttle
from shoal.errors import PolicyLogError, PolicyRejected

TRANSITIONS_INTERVAL: Final = 100
"""Updates from transitions between publications when nothing else is asked for."""
IDLE_SHARE: Final = 0.1
"""How much of its time a learner that waits for data spends on publishing, at most."""
FALLBACK_AGAIN_S: Final = 600.0
"""Between two events that say that versions fall back: what can be done about it changes seldom."""


@dataclass(frozen=True, slots=True)
class PublisherParts:
    """What the publisher works on."""

    policy_log: PolicyLog
    parameter_server: ParameterServer
    versions: KnownVersions
    jumps: VersionJumps
    fleet: Fleet
    stats: TrainingStats
    counters: Counter[str]


class Publisher:
    """Knows what was published and when the next version is due. Used from the event loop.

    publisher = Publisher(parts, config.training, data="rollouts")
    publisher.note_step(stepped.experience)
    if publisher.due(brain.learner.updates, waiting=parts.replay.steps):
        await publisher.publish(brain)
    """

    def __init__(
        self,
        parts: PublisherParts,
        training: TrainingConfig,
        *,
        data: DataKind,
        note_published: Callable[[int], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing was published yet.

        Args:
            parts: What it works on.
            training: Its configuration.
            data: What the algorithm trains from.
            note_published: Is called with each version before devices can get it.
            clock: Monotonic seconds.
        """
        self._note_published = note_published
        self._clock = clock
        self._began_s = self._ended_s = -math.inf
        self._parts = parts
        self._training = training
        self._data = data
        self._experience: Batch | Transitions | Fresh | Likeness | None = None
        self._sample: Sample | None = None
        self._updates = 0
        self._steps = 0
        self._stored = 0
        self._refused: Mapping[str, float] = {}
        self._throttle = Throttle(FALLBACK_AGAIN_S, clock=clock)

    def note_step(self, experience: Batch | Transitions | Fresh | Likeness) -> None:
        """Notes what was trained from or stored: the next version is measured by it."""
        if not isinstance(experience, Likeness) or len(experience.observations):
            self._experience = experience
        if isinstance(experience, Fresh):
            self._stored += experience.rewards.size
        else:
            self._steps += 1

    def due(self, updates: int, *, waiting: int) -> bool:
        """Whether a version is due after a step.

        Where devices wait, every batch of rollouts gives one, even if no update of it counted;
        from transitions one comes when none of the updates of a turn is left.

        Args:
            updates: The learner's.
            waiting: Transitions in replay. Of rollouts each waits to be trained from, and two
                batches of them are to catch up with; other transitions only lie there.
        """
        training = self._training
        rollouts = self._data == "rollouts"
        if training.waits_for_devices:
            return rollouts and self._steps > 0
        interval = training.publish_interval or (1 if rollouts else TRANSITIONS_INTERVAL)
        behind = rollouts and waiting >= 2 * training.batch_steps
        due = updates - self._updates >= interval
        return due and not (behind and self._steps < training.catch_up_batches)

    def due_before_waiting(self, updates: int) -> bool:
        """Whether a version is due since the learner is about to wait for data.

        What devices wait for before they act again must not wait for what they would do then. So
        whatever came is answered with a version, be it of the same weights: a device that skipped
        a version would otherwise keep all others waiting.
        """
        if self._training.waits_for_devices:
            return self._steps > 0 or self._stored > 0
        return updates > self._updates or self._stored > 0

    def rest_s(self) -> float:
        """How long a learner that waits for data leaves its devices the version they have.

        So that many devices with small chunks do not have it publish, and send, all the time:
        of that it does no more than `IDLE_SHARE`. Where all wait for each version it does not rest.
        """
        if self._training.waits_for_devices or math.isinf(self._ended_s):
            return 0.0
        took_s = self._ended_s - self._began_s
        return max(0.0, self._ended_s + took_s * (1 / IDLE_SHARE - 1) - self._clock())

    async def begin(self, brain: Brain, sample: Sample, *, reason: str) -> Published:
        """Makes the first version; the caller offers it.

        Raises:
            PolicyLogError: It cannot be published.
            PolicyRejected: Its weights cannot be published.
        """
        self._sample = sample
        if self._parts.jumps.due:
            self._skip_versions()
        return await in_thread_to_the_end(self._make, brain, reason)

    async def publish(self, brain: Brain, *, reason: str = "publish") -> None:
        """Publishes; when that fails the devices keep what they have and training goes on."""
        fleet = self._parts.fleet
        self._began_s = self._clock()
        try:
            published = await in_thread_to_the_end(self._make, brain, reason)
        except (PolicyLogError, PolicyRejected) as error:
            self._parts.counters["publish_failures"] += 1
            fleet.raise_condition("cannot_publish", str(error))
        else:
            fleet.clear_condition("cannot_publish")
            self.offer(published)
        finally:
            self._ended_s = self._clock()

    async def jump(self, brain: Brain) -> None:
        """Publishes what there is above the versions of the devices, so that they follow again."""
        self._skip_versions()
        await self.publish(brain, reason="version_jump")

    def offer(self, published: Published) -> None:
        """Hands a version out."""
        manifest, parts = published.manifest, self._parts
        self._note_published(manifest.version)
        parts.versions.add(manifest.version, KnownVersion.of(manifest))
        parts.parameter_server.announce(published)
        parts.stats.note_published(
            manifest.version,
            precision=manifest.precision,
            kl_quantization=manifest.kl_quantization,
        )
        self._updates = manifest.updates
        self._steps = 0
        self._stored = 0
        if self._refused:
            self._tell_fallback(manifest.version, manifest.precision)

    def _tell_fallback(self, version: int, precision: str) -> None:
        """Says that rounding would have cost too much; not of every such version."""
        self._parts.counters["precision_fallbacks"] += 1
        count = self._throttle.count_to_tell("precision_fallback")
        if count:
            self._parts.fleet.record(
                LEARNER,
                "precision_fallback",
                f"policy v{version} goes out as {precision}, since {_gaps(self._refused)}: over "
                "the bound (training.kl_quantization_max). Devices act slower with it. Try "
                "training.network.quantization_aware = true, or raise the bound",
                count=str(count),
                precision=precision,
            )

    def _make(self, brain: Brain, reason: str) -> Published:
        policy = brain.learner.policy
        if self._experience is not None:
            self._sample = sample_from(policy, self._experience)
            self._experience = None
        assert self._sample is not None  # noqa: S101 - `begin` set it
        quantized = brain.quantizer.quantize(policy, self._sample)
        self._refused = quantized.refused
        if quantized.refused:
            reason = f"{reason}; {_gaps(quantized.refused)}"
        return self._parts.policy_log.publish(
            quantized,
            graph=brain.quantizer.graphs[quantized.precision],
            float_graph=brain.quantizer.graphs["fp32"] if quantized.precision == "int8" else None,
            updates=brain.learner.updates,
            spec_fingerprint=brain.spec.fingerprint,
            behaviour=brain.learner.behaviour,
            reason=reason,
        )

    def _skip_versions(self) -> None:
        """Has the next version be above what devices hold."""
        parts = self._parts
        before, held = parts.policy_log.highest_version, parts.jumps.take()
        parts.policy_log.skip_to(held)
        parts.counters["version_jumps"] += 1
        parts.fleet.record(
            LEARNER,
            "version_jumped",
            f"devices hold policy version {held} and the highest here was {before}: the next is "
            "above theirs, as they accept no other. Was state_dir lost or replaced?",
        )


def _gaps(refused: Mapping[str, float]) -> str:
    """What each precision that was tried would have cost."""
    each = (f"{precision} is {kl:.2g} nats off" for precision, kl in refused.items())
    return ", ".join(each)


def sample_from(policy: Policy, experience: Batch | Transitions | Fresh | Likeness) -> Sample:
    """What a policy saw, to quantize it by."""
    if isinstance(experience, Batch):
        return sample_of(policy, experience)
    rows = experience.observations
    if isinstance(experience, Fresh):
        rows = rows.reshape(-1, *rows.shape[2:])
    return Sample(rows, np.zeros((len(rows), policy.state_width), np.float32))
