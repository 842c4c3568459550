"""What lies in a learner's state directory, opened: what training goes on from."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.config import LearnerConfig
from cloud_learner.downlink.active_policies import ActivePolicies, InUse
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.reoffer import last_episodes, last_fingerprint
from cloud_learner.state_dir import StateDir
from cloud_learner.training.checkpoint import Checkpoint, CheckpointStore
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.stats import Progress, TrainingStats
from cloud_learner.training.trainer import Past
from cloud_learner.uplink.admission import KnownVersion, KnownVersions


@dataclass(frozen=True, slots=True)
class Stored:
    """What was found, and where more goes.

    stored = Stored.open(config, state, signing_key, stack, checkpoints=all, checkpoint=newest)
    stored.checkpoint            # None: training starts anew

    Attributes:
        checkpoints: Of training.
        checkpoint: The newest; None when there is none.
        active: What devices act with.
        policy_log: The versions published.
        newest: The newest of them, from before this start.
        journal: The chunks.
    """

    checkpoints: CheckpointStore
    checkpoint: Checkpoint | None
    active: ActivePolicies
    policy_log: PolicyLog
    newest: Published | None
    journal: Journal

    @classmethod
    def open(
        cls,
        config: LearnerConfig,
        state: StateDir,
        signing_key: Ed25519PrivateKey,
        stack: AsyncExitStack,
        *,
        checkpoints: CheckpointStore,
        checkpoint: Checkpoint | None,
        pinned: InUse = frozenset,
    ) -> Self:
        """Opens policy log and journal beside checkpoints that were read.

        Args:
            config: The learner's configuration.
            state: Where everything lies.
            signing_key: Signs policies.
            stack: Closes what is opened here.
            checkpoints: Of this directory.
            checkpoint: The newest of them.
            pinned: Says which policy versions are never deleted.

        Raises:
            ShoalError: Something on disk is damaged or in use.
        """
        saved_version = checkpoint.version if checkpoint is not None else 0
        active = ActivePolicies(state.active)
        policy_log = stack.enter_context(
            PolicyLog(
                state.policies,
                signing_key,
                config.fleet,
                keep=config.policies_kept,
                keep_per_doubling=config.policies_per_doubling,
                after_version=max(saved_version, config.policies_after_version),
                in_use=active.versions,
                pinned=pinned,
            )
        )
        newest = policy_log.newest()
        journal = stack.enter_context(Journal(state.journal, config.journal))
        return cls(checkpoints, checkpoint, active, policy_log, newest, journal)

    def cursor(self) -> Cursor | None:
        """Which journal positions the checkpoint's weights hold; None without one.

        Raises:
            JournalError: The journal cannot be read.
        """
        if self.checkpoint is None:
            return None
        return self.checkpoint.cursor.upto(self.journal.last_position)

    def versions(self) -> KnownVersions:
        """The versions that chunks may be of."""
        log = self.policy_log
        versions = KnownVersions(log.updates_of, highest=log.highest_version)
        for info in log.list():
            versions.add(info.manifest.version, KnownVersion.of(info.manifest))
        return versions

    def past(self) -> Past | None:
        """What is known of earlier training though its weights may be lost.

        Raises:
            JournalError: The journal cannot be read.
        """
        if self.newest is not None:
            # The newest may be an earlier one that was published again.
            updates = max(info.manifest.updates for info in self.policy_log.list())
            return Past(self.newest.manifest.spec_fingerprint, updates)
        fingerprint = last_fingerprint(self.journal)
        if fingerprint is None:
            return None
        return Past(fingerprint, self.policy_log.updates_of(self.policy_log.highest_version) or 0)

    def stats(self) -> TrainingStats:
        """Counts that go on from all chunks ever accepted.

        Raises:
            JournalError: The journal cannot be read.
        """
        totals = self.journal.totals
        stats = TrainingStats(Progress(totals.transitions, totals.episodes, totals.body_bytes))
        stats.restore_window(last_episodes(self.journal))
        return stats
