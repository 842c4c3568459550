"""Trains for ever: wait for data, step, publish, checkpoint."""

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
from cloud_learner.downlink.version_jumps import VersionJumps
from cloud_learner.fleet.fleet import Fleet
from cloud_learner.journal.audit import Disposition
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.reoffer import reoffer
from cloud_learner.models.policy import Policy
from cloud_learner.quantization.sample import Sample, probe_sample, sample_of
from cloud_learner.training.brain import Brain
from cloud_learner.training.checkpoint import Checkpoint
from cloud_learner.training.experience import Admitted, collate
from cloud_learner.training.metrics import Metrics, levels_of
from cloud_learner.training.publisher import Publisher
from cloud_learner.training.saver import Saver
from cloud_learner.training.source import Draw, Moment, Source, Stepped
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uninterrupted import in_thread_to_the_end
from cloud_learner.uplink.admission import KnownVersions, Standard
from shoal.envelope import ChunkKey
from shoal.errors import ConfigError, JournalError, WireError
from shoal.logs import get_logger
from shoal.services import backoff
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk

RETRY_BASE_S: Final = 0.1
RETRY_CAP_S: Final = 5.0
_log = get_logger("trainer")


@dataclass(frozen=True, slots=True)
class TrainerParts:
    """What the trainer works on."""

    journal: Journal
    replay: Source
    fleet: Fleet
    stats: TrainingStats
    counters: Counter[str]
    versions: KnownVersions
    policy_log: PolicyLog
    parameter_server: ParameterServer
    publisher: Publisher
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
        max_lag: int,
        past: Past | None = None,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Waits with everything until it is served.

        Args:
            config: The learner's configuration.
            parts: What it works on.
            build: Makes learner and quantizer for the spaces.
            max_lag: Updates that a chunk may be behind.
            past: What fresh weights go on from; None when there was no training before.
            rng: For the jitter of retries.
            clock: Monotonic seconds.
        """
        self._config = config
        self._parts = parts
        self._build = build
        self._max_lag = max_lag
        self._past = past
        self._rng = rng
        self._clock = clock
        self._brain: Brain | None = None
        self._saved_s = 0.0
        self._midway = False
        self._asked: list[Callable[[Checkpoint], object]] = []

    @property
    def updates(self) -> int:
        """The learner's optimiser updates."""
        return self._brain.learner.updates if self._brain is not None else 0

    def standard(self) -> Standard | None:
        """What chunks are held against now; None before any space is known."""
        return self._standard_of(self._brain) if self._brain is not None else None

    def spec(self) -> EnvSpec | None:
        """The spaces that are trained for; None before any is known."""
        return self._brain.spec if self._brain is not None else None

    def oldest_version(self) -> int:
        """The oldest version whose chunks are within the lag bound; 0: all are."""
        return self._parts.versions.oldest_within(self.updates - self._max_lag)

    def trains_from(self, version: int) -> bool:
        """Whether chunks of a version that is known are within the lag bound."""
        known = self._parts.versions.find(version)
        return known is None or self.updates - known.updates <= self._max_lag

    def when_at_rest(self, take: Callable[[Checkpoint], object]) -> None:
        """Has `take` called with a checkpoint: now, or when the step in progress is done.

        Raises:
            ConfigError: Nothing is trained yet.
        """
        if self._brain is None:
            raise ConfigError("nothing is trained yet: the learner waits for the first device")
        self._asked.append(take)
        self._answer(self._brain)

    def _answer(self, brain: Brain) -> None:
        if self._asked and not self._midway:
            checkpoint, asked = self._parts.saver.checkpoint_of(brain), self._asked
            self._asked = []
            for take in asked:
                take(checkpoint)

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
        sample = _first_sample(brain.learner.policy, reoffered.newest, seed=self._config.seed)
        await self._save(brain)
        published = await parts.publisher.begin(brain, sample, reason=reason)
        self._brain = brain
        parts.stats.note_updates(brain.learner.updates)
        parts.publisher.offer(published)
        parts.fleet.set_spec(brain.spec)
        parts.metrics.levels = levels_of(brain.spec, self._config.training.algorithm)
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
            max_lag=self._max_lag,
            state_width=brain.learner.policy.state_width,
            max_reward=self._config.training.max_reward,
        )

    async def _train_once(self, brain: Brain) -> None:
        parts, learner = self._parts, brain.learner
        parts.stats.note_fill(parts.replay.fill)
        await self._wait_for_work(brain)
        if parts.jumps.due:
            await parts.publisher.jump(brain)
            return
        # From here until the step is done, replay and weights disagree about what was trained.
        self._midway = True
        draw = parts.replay.take(Moment(learner.updates, self._max_lag))
        await self._expire([item.position for item in draw.expired])
        if draw.work:
            stepped = await in_thread_to_the_end(parts.replay.step, learner, draw)
        self._midway = False
        self._answer(brain)
        if draw.work:
            self._note_staleness(draw, stepped)
            await self._note_step(brain, stepped)

    async def _wait_for_work(self, brain: Brain) -> None:
        """Waits for data; meanwhile it publishes what devices may be waiting for.

        Devices that wait for a version make no data until they have it. What could not be published
        is tried again.
        """
        parts, attempt = self._parts, 0
        while not (parts.replay.ready() or parts.jumps.due):
            wait_s = None
            if parts.publisher.due_before_waiting(brain.learner.updates):
                wait_s = parts.publisher.rest_s()
                if attempt:
                    wait_s = backoff(
                        attempt - 1, base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S, rng=self._rng
                    )
            try:
                async with asyncio.timeout(wait_s):
                    await parts.replay.wait_ready(unless=lambda: parts.jumps.due)
            except TimeoutError:
                attempt += 1
                await parts.publisher.publish(brain)

    def _note_staleness(self, draw: Draw, stepped: Stepped) -> None:
        if stepped.metrics is not None:
            acted = {item.chunk.policy_version for item in draw.taken}
            self._parts.stats.note_staleness(acted, stepped.metrics.values.get("kl_staleness"))

    async def _note_step(self, brain: Brain, stepped: Stepped) -> None:
        parts = self._parts
        self._count(stepped)
        parts.publisher.note_step(stepped.experience)
        if parts.publisher.due(brain.learner.updates, waiting=parts.replay.steps):
            await parts.publisher.publish(brain)
        if stepped.metrics is not None:
            parts.metrics.write(
                stepped.metrics, parts.stats.to_pb(), stepped.lags, fill=parts.stats.fill
            )
        if self._clock() - self._saved_s >= self._config.checkpoint_interval_s:
            await self._save(brain)

    def _count(self, stepped: Stepped) -> None:
        metrics, parts = stepped.metrics, self._parts
        if metrics is None:
            return
        parts.stats.note_step(metrics.values, updates=metrics.updates, lags=stepped.lags)
        parts.counters["batches"] += 1
        parts.counters["trained_transitions"] += stepped.transitions
        parts.counters["updates_skipped"] += int(metrics.values["skipped"])
        parts.counters["weights_not_finite"] += metrics.values["weights_finite"] == 0.0

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

    async def _save(self, brain: Brain) -> None:
        self._saved_s = self._clock()
        await self._parts.saver.save(brain)


def _first_sample(policy: Policy, newest: Chunk | None, *, seed: int) -> Sample:
    """What the first version is measured by: the newest chunk, or else what might be observed."""
    if newest is None:
        return probe_sample(policy, seed=seed)
    only = Admitted(ChunkKey("", b"", 0), 0, newest, 0)
    return sample_of(policy, collate([only], updates_now=0))
