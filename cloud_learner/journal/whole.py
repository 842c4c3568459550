"""Every whole episode that a journal holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cloud_learner.journal.audit import RunKey
from cloud_learner.journal.episodes import EpisodeJoiner, WholeEpisode
from cloud_learner.journal.reader import JournalReader
from shoal.errors import JournalError
from shoal.spaces import EnvSpec


@dataclass(frozen=True, slots=True, eq=False)
class RunEpisode:
    """An episode and the run it is of."""

    run: RunKey
    episode: WholeEpisode


class Whole:
    """The whole episodes of a journal, run by run; iterated once.

    >>> whole = Whole(journal, spec)
    >>> episodes = list(whole)
    >>> whole.left_out           # steps that belong to none of them
    """

    def __init__(self, journal: JournalReader, spec: EnvSpec) -> None:
        self.left_out = 0
        self._journal = journal
        self._spec = spec

    def __iter__(self) -> Iterator[RunEpisode]:
        for run in self._journal.runs():
            joiner = EpisodeJoiner()
            for item in self._journal.chunks(run.key):
                if item.chunk.spec_fingerprint != self._spec.fingerprint:
                    raise JournalError(
                        f"chunk {item.seq} of {run.key.device_id} was made in other spaces than "
                        f"those of {self._spec.env_id}, for which the newest checkpoint is"
                    )
                for episode in joiner.add(item.seq, item.chunk):
                    yield RunEpisode(run.key, episode)
            self.left_out += joiner.left_out
