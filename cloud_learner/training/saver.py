"""Saves what training goes on from: checkpoints, what devices reported; prunes the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from cloud_learner.fleet.fleet import Fleet
from cloud_learner.journal.audit import RunKey, RunReport
from cloud_learner.journal.journal import Journal
from cloud_learner.training.brain import Brain
from cloud_learner.training.checkpoint import Checkpoint, CheckpointStore
from cloud_learner.training.source import Source
from cloud_learner.training.transition_replay import TransitionReplay
from cloud_learner.uninterrupted import in_thread_to_the_end
from cloud_learner.uplink.admission import KnownVersions
from shoal.errors import CheckpointError, JournalError, ShoalError


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What is saved together."""

    checkpoint: Checkpoint
    reports: Mapping[RunKey, RunReport]


@dataclass(frozen=True, slots=True)
class _Saved:
    """What became of a snapshot."""

    snapshot: _Snapshot
    error: ShoalError | None


class Saver:
    """Takes a consistent snapshot on the event loop and writes it in a thread.

    saver = Saver(journal, replay, fleet, versions, checkpoints, counters)
    await saver.save(brain)       # between two steps of the learner
    """

    def __init__(
        self,
        journal: Journal,
        replay: Source,
        fleet: Fleet,
        versions: KnownVersions,
        checkpoints: CheckpointStore,
        counters: Counter[str],
    ) -> None:
        self._journal = journal
        self._replay = replay
        self._fleet = fleet
        self._versions = versions
        self._checkpoints = checkpoints
        self._counters = counters

    async def save(self, brain: Brain) -> None:
        """Saves; then what the checkpoint covers may leave the journal."""
        self._note(await in_thread_to_the_end(self._write, self._snapshot(brain)))

    def _snapshot(self, brain: Brain) -> _Snapshot:
        return _Snapshot(self.checkpoint_of(brain), self._fleet.take_unsaved_reports())

    def checkpoint_of(self, brain: Brain) -> Checkpoint:
        """Copies everything a checkpoint holds, as of one moment between two steps."""
        return Checkpoint(
            spec=brain.spec,
            learner=brain.learner.state_dict(),
            quantizer=brain.quantizer.state_dict(),
            source=self._replay.state_dict(),
            cursor=self._replay.cursor,
            version=self._versions.highest,
            recipe=brain.recipe,
        )

    def _write(self, snapshot: _Snapshot) -> _Saved:
        try:
            self._journal.save_reports(snapshot.reports)
            self._checkpoints.save(snapshot.checkpoint)
            held = TransitionReplay.held(snapshot.checkpoint.source)
            self._journal.prune(snapshot.checkpoint.cursor, held)
        except (CheckpointError, JournalError) as error:
            return _Saved(snapshot, error)
        return _Saved(snapshot, None)

    def _note(self, saved: _Saved) -> None:
        fleet = self._fleet
        if saved.error is None:
            fleet.clear_condition("cannot_checkpoint")
            self._note_retention(saved.snapshot.checkpoint)
        else:
            fleet.put_unsaved(saved.snapshot.reports)
            self._counters["checkpoint_failures"] += 1
            fleet.raise_condition("cannot_checkpoint", str(saved.error))

    def _note_retention(self, checkpoint: Checkpoint) -> None:
        """Says so when the chunks in replay alone are more than is to be retained."""
        excess, fleet = self._journal.excess_bytes, self._fleet
        if excess and TransitionReplay.held(checkpoint.source):
            fleet.raise_condition(
                "retention_exceeded",
                f"the journal holds {excess} bytes more than journal.retain_bytes, as a resume "
                "needs the chunks that are in replay: raise it, or lower training.replay_steps or "
                "training.replay_bytes",
            )
        else:
            fleet.clear_condition("retention_exceeded")

    def save_now(self, brain: Brain) -> None:
        """The same without a thread, for a service that is being cancelled."""
        self._note(self._write(self._snapshot(brain)))
