"""Trains for ever: wait for a batch, step, quantize and publish, checkpoint."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cloud_learner.config import LearnerConfig
from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.version_jumps import VersionJumps
from cloud_learner.fleet.fleet import Fleet
from cloud_learner.journal.audit import Disposition
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.reoffer import reoffer
from cloud_learner.training.brain import Brain
from cloud_learner.training.calibration import probe_observations, rows_of
from cloud_learner.training.learner import Learner, StepMetrics
from cloud_learner.training.metrics import Metrics
from cloud_learner.training.replay import Admitted, Batch, Replay, collate
from cloud_learner.training.saver import Saver
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uninterrupted import in_thread_to_the_end
from cloud_learner.uplink.admission import KnownVersion, KnownVersions, Standard
from cloud_learner.uplink.arrivals import LEARNER
from shoal.errors import (
    ConfigError,
    JournalError,
    PolicyLogError,
    PolicyRejected,
    WireError,
)
from shoal.logs import get_logger
from shoal.services import backoff
from shoal.spaces import EnvSpec
from shoal.tensors import Array

RETRY_BASE_S: Final = 0.1
RETRY_CAP_S: Final = 5.0
_log = get_logger("trainer")


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step of the learner: what it trained from and what it said."""

    batch: Batch
    metrics: StepMetrics


@dataclass(frozen=True, slots=True)
class TrainerParts:
    """What the trainer works on."""

    journal: Journal
    replay: Replay
    fleet: Fleet
    stats: TrainingStats
    counters: Counter[str]
    versions: KnownVersions
    policy_log: PolicyLog
    parameter_server: ParameterServer
    saver: Saver
    metrics: Metrics
    jumps: VersionJumps


@dataclass(frozen=True, slots=True)
class Past:
    """What policy log and journal say of training whose weights no checkpoint holds.

    Attributes:
        fingerprint: Of the spaces that were trained for.
        updates: Optimiser updates of the newest policy.
    """

    fingerprint: bytes
    updates: int


class Trainer:
    """The only one who steps the learner. All of its state is consistent between two steps.

    trainer = Trainer(config, parts, build=build_brain, rng=rng)
    await trainer.serve(restored)      # until cancelled, then a last checkpoint
    """

    def __init__(
        self,
        config: LearnerConfig,
        parts: TrainerParts,
        *,
        build: Callable[[EnvSpec], Brain],
        past: Past | None = None,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Waits with everything until it is served.

        Args:
            config: The learner's configuration.
            parts: What it works on.
            build: Makes learner and quantizer for the spaces.
            past: What fresh weights go on from; None when there was no training before.
            rng: For the jitter of retries.
            clock: Monotonic seconds.
        """
        self._config = config
        self._training = config.training
        self._parts = parts
        self._build = build
        self._past = past
        self._rng = rng
        self._clock = clock
        self._brain: Brain | None = None
        self._published_updates = 0
        self._unpublished = 0
        self._saved_s = 0.0
        self._midway = False
        self._calibration: Array | None = None

    @property
    def updates(self) -> int:
        """The learner's optimiser updates."""
        return self._brain.learner.updates if self._brain is not None else 0

    def standard(self) -> Standard | None:
        """What chunks are held against now; None before any space is known."""
        return self._standard_of(self._brain) if self._brain is not None else None

    async def serve(self, restored: Brain | None = None) -> None:
        """Trains until cancelled, and saves a last checkpoint.

        Args:
            restored: From a checkpoint; None to build one for the first device that is born.

        Raises:
            PolicyLogError: The first version cannot be published.
            PolicyRejected: Its weights cannot be published.
        """
        if restored is not None:
            await self._begin(restored, reason="resume")
        brain = restored if restored is not None else await self._first_brain()
        try:
            while True:
                await self._train_once(brain)
        finally:
            if not self._midway:
                self._parts.saver.save_now(brain)

    async def _begin(self, brain: Brain, *, reason: str) -> None:
        """Offers what the journal still holds to replay, publishes, and accepts chunks."""
        parts = self._parts
        standard = self._standard_of(brain)
        reoffered = await in_thread_to_the_end(
            reoffer, parts.journal, parts.replay.cursor, standard
        )
        parts.replay.add(reoffered.admitted)
        observations = reoffered.observations
        if observations is None:
            observations = probe_observations(brain.spec, seed=self._config.seed)
        self._calibration = observations
        if parts.jumps.due:
            self._skip_versions()
        await self._save(brain)
        published = await in_thread_to_the_end(self._make_version, brain, observations, reason)
        self._brain = brain
        parts.stats.note_updates(brain.learner.updates)
        self._offer(published)
        parts.fleet.set_spec(brain.spec)
        _log.info(
            "training_begins",
            env_id=brain.spec.env_id,
            reason=reason,
            updates=brain.learner.updates,
            reoffered=len(reoffered.admitted),
        )

    async def _first_brain(self) -> Brain:
        while True:
            spec = await self._parts.fleet.next_birth()
            if self._past is not None and spec.fingerprint != self._past.fingerprint:
                self._parts.fleet.raise_condition(
                    "birth_of_other_spaces",
                    f"a device acts in {spec.env_id!r}, whose spaces are not those that were "
                    "trained for here: waiting for a device that fits; to train for other spaces "
                    "use another state_dir",
                )
                continue
            try:
                brain = self._build(spec)
            except (WireError, ConfigError) as error:
                self._parts.fleet.raise_condition("cannot_train", str(error))
                continue
            self._parts.fleet.clear_condition("cannot_train")
            self._parts.fleet.clear_condition("birth_of_other_spaces")
            await self._begin(brain, reason=self._go_on_from_past(brain))
            return brain

    def _go_on_from_past(self, brain: Brain) -> str:
        """Counts on where the lost weights ended; why the first version is published."""
        if self._past is None:
            return "start"
        brain.learner.resume_at(self._past.updates)
        _log.warning(
            "fresh_weights",
            updates=brain.learner.updates,
            problem="there is no checkpoint: the weights start anew, versions and updates go on",
        )
        return "fresh_weights"

    def _standard_of(self, brain: Brain) -> Standard:
        return Standard(
            spec=brain.spec,
            versions=self._parts.versions,
            updates_now=brain.learner.updates,
            max_lag=self._training.max_lag,
        )

    async def _train_once(self, brain: Brain) -> None:
        parts, training = self._parts, self._training
        await parts.replay.wait_ready(training.batch_steps, unless=lambda: parts.jumps.due)
        if parts.jumps.due:
            await self._jump(brain)
            return
        # From here until the step is done, replay and weights disagree about what was trained.
        self._midway = True
        draw = parts.replay.take(
            training.batch_steps, updates_now=brain.learner.updates, max_lag=training.max_lag
        )
        await self._expire([item.position for item in draw.expired])
        if draw.taken:
            stepped = await in_thread_to_the_end(_step, brain.learner, draw.taken)
        self._midway = False
        if draw.taken:
            await self._note_step(brain, stepped)

    async def _note_step(self, brain: Brain, stepped: Stepped) -> None:
        parts, updates = self._parts, stepped.metrics.updates
        parts.stats.note_step(stepped.metrics.values, updates=updates, lags=stepped.batch.lags)
        parts.counters["batches"] += 1
        parts.counters["trained_transitions"] += stepped.batch.transitions
        self._unpublished += 1
        if self._must_publish(updates):
            self._calibration = rows_of(stepped.batch.observations)
            await self._publish(brain, self._calibration)
        self._write_metrics(stepped)
        if self._clock() - self._saved_s >= self._config.checkpoint_interval_s:
            await self._save(brain)

    def _must_publish(self, updates: int) -> bool:
        training = self._training
        due = updates - self._published_updates >= max(1, training.publish_interval)
        behind = self._parts.replay.steps >= 2 * training.batch_steps
        return due and not (behind and self._unpublished < training.catch_up_batches)

    async def _expire(self, positions: list[int]) -> None:
        """Has the journal say that these expired, however long its disk refuses."""
        attempt = 0
        while positions:
            try:
                await in_thread_to_the_end(
                    self._parts.journal.redispose, positions, Disposition.EXPIRED
                )
            except JournalError as error:
                self._parts.counters["journal_failures"] += 1
                self._parts.fleet.raise_condition("journal_full", str(error))
                wait_s = backoff(attempt, base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S, rng=self._rng)
                attempt += 1
                await asyncio.sleep(wait_s)
            else:
                self._parts.counters["expired_in_replay"] += len(positions)
                self._parts.fleet.clear_condition("journal_full")
                return

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

    async def _jump(self, brain: Brain) -> None:
        """Publishes what there is above the versions of the devices, so that they follow again."""
        self._skip_versions()
        if self._calibration is not None:
            await self._publish(brain, self._calibration, reason="version_jump")

    async def _publish(self, brain: Brain, observations: Array, *, reason: str = "publish") -> None:
        """Publishes; when that fails the devices keep what they have and training goes on."""
        fleet = self._parts.fleet
        try:
            published = await in_thread_to_the_end(self._make_version, brain, observations, reason)
        except (PolicyLogError, PolicyRejected) as error:
            self._parts.counters["publish_failures"] += 1
            fleet.raise_condition("cannot_publish", str(error))
        else:
            fleet.clear_condition("cannot_publish")
            self._offer(published)

    def _make_version(self, brain: Brain, observations: Array, reason: str) -> Published:
        quantized = brain.quantizer.quantize(brain.learner.model, observations)
        return self._parts.policy_log.publish(
            quantized,
            graph=brain.quantizer.graphs[quantized.precision],
            updates=brain.learner.updates,
            spec_fingerprint=brain.spec.fingerprint,
            reason=reason,
        )

    def _offer(self, published: Published) -> None:
        manifest, parts = published.manifest, self._parts
        parts.versions.add(manifest.version, KnownVersion(manifest.updates, published.digest))
        parts.parameter_server.announce(published)
        parts.stats.note_published(
            manifest.version,
            precision=manifest.precision,
            kl_quantization=manifest.kl_quantization,
        )
        self._published_updates = manifest.updates
        self._unpublished = 0

    async def _save(self, brain: Brain) -> None:
        self._saved_s = self._clock()
        await self._parts.saver.save(brain)

    def _write_metrics(self, stepped: Stepped) -> None:
        stats = self._parts.stats
        self._parts.metrics.write(stepped.metrics, stats.to_pb(), stepped.batch.lags)


def _step(learner: Learner, taken: tuple[Admitted, ...]) -> Stepped:
    batch = collate(taken, updates_now=learner.updates)
    return Stepped(batch, learner.step(batch))
