"""Counts what a slot on trial acted, and says so once it is enough: only acting commits a slot."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from edge_agent.slots.rules import has_acted
from shoal.durable_file import write_durably
from shoal.trajectory import Chunk

ACTED_NAME: Final = "trial-acted.json"
SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Acted:
    """What was acted under policies in this run.

    Attributes:
        episodes: That ended.
        chunks: That were recorded.
        policy_version: Of the last one.
    """

    episodes: int = 0
    chunks: int = 0
    policy_version: int = 0


class TrialWitness:
    """Sees every chunk and writes down that a trial was passed.

    witness = TrialWitness(config.state_dir, acts=3)
    act_forever(actor, policies, witness.seeing(keep), ...)
    witness.testify(trial=7)  # elsewhere, now and then
    """

    def __init__(self, state_dir: Path, *, acts: int) -> None:
        """Saw nothing yet.

        Args:
            state_dir: The agent's own.
            acts: How many episodes are enough.
        """
        self._path = state_dir / ACTED_NAME
        self._acts = acts
        self._lock = threading.Lock()
        self._told: int | None = None
        self.acted = Acted()

    def seeing(self, keep: Callable[[Chunk], object]) -> Callable[[Chunk], object]:
        """The same as `keep`, each chunk being counted once it was kept."""

        def kept(chunk: Chunk) -> object:
            result = keep(chunk)
            with self._lock:
                self.acted = replace(
                    self.acted,
                    episodes=self.acted.episodes + len(chunk.episodes),
                    chunks=self.acted.chunks + 1,
                    policy_version=chunk.policy_version,
                )
            return result

        return kept

    def testify(self, trial: int) -> bool:
        """Writes down that the trial was passed, once, if it was; whether it was just written.

        Raises:
            OSError: The disk is full; the next call tries again.
        """
        acted = self.acted
        enough = has_acted(episodes=acted.episodes, chunks=acted.chunks, acts=self._acts)
        if not enough or self._told == trial:
            return False
        table = {
            "schema": SCHEMA,
            "trial": trial,
            "episodes": acted.episodes,
            "chunks": acted.chunks,
            "policy_version": acted.policy_version,
        }
        write_durably(self._path, json.dumps(table).encode())
        self._told = trial
        return True
