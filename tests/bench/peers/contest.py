"""What every contestant shares: the criterion, and the one line of JSON it reports by.

Standard library only, so that it runs unchanged in each peer's own virtual environment.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass

WINDOW_EPISODES = 100
"""Episodes averaged by the criterion, as in Gymnasium's `reward_threshold`."""


class SolveDetector:
    """Says when the mean return of the last `window` training episodes reaches `threshold`.

    ```
    detector = SolveDetector(475.0)
    solved = detector.add(episode_return)  # True once, and from then on
    ```
    """

    __slots__ = ("_returns", "_threshold", "episodes", "solved")

    def __init__(self, threshold: float, window: int = WINDOW_EPISODES) -> None:
        self._threshold = threshold
        self._returns: deque[float] = deque(maxlen=window)
        self.episodes = 0
        self.solved = False

    @property
    def mean(self) -> float:
        """Mean return of the episodes in the window; nan before the first."""
        return sum(self._returns) / len(self._returns) if self._returns else float("nan")

    def add(self, episode_return: float) -> bool:
        """Take the return of one finished episode; say whether the criterion is or was met."""
        self._returns.append(episode_return)
        self.episodes += 1
        full = len(self._returns) == self._returns.maxlen
        self.solved = self.solved or (full and self.mean >= self._threshold)
        return self.solved


@dataclass(frozen=True, slots=True)
class PeerResult:
    """What a peer prints: instants are of the system's monotonic clock, in seconds."""

    solved: bool
    imported_at_s: float
    ended_at_s: float  # when the criterion was met, or when the budget ran out
    env_steps: int
    episodes: int
    return_mean: float
    note: str
    evaluation_mean: float | None = None  # of the deterministic policy, where it was asked for
    evaluation_std: float | None = None

    def print(self) -> None:
        """Write the one line of JSON that `learn.py` reads from standard output."""
        sys.stdout.write(json.dumps(asdict(self)) + "\n")
        sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """What `learn.py` asks of a peer.

    Attributes:
        threads: torch's intra-op threads; 0 leaves torch's default.
        settings: Which of a peer's own settings, where it has several.
        algorithm: Which of a peer's algorithms, where it has several.
        steps: End after so many environment steps, solved or not; 0: when solved.
        evaluate: Episodes of the deterministic policy once it ended.
    """

    seed: int
    env: str
    threshold: float
    timeout_s: float
    threads: int
    settings: str
    algorithm: str = ""
    steps: int = 0
    evaluate: int = 0


def read_options(
    description: str,
    settings: Sequence[str] = ("only",),
    parents: Sequence[argparse.ArgumentParser] = (),
) -> PeerOptions:
    """Parse a peer's command line.

    Args:
        description: What `--help` says.
        settings: Names of the peer's settings, the default first.
        parents: Flags that the peer has of its own.
    """
    parser = argparse.ArgumentParser(description=description, parents=list(parents))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--threshold", type=float, default=475.0)
    parser.add_argument("--timeout-s", type=float, default=120.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--settings", choices=settings, default=settings[0])
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--evaluate", type=int, default=0)
    given = parser.parse_args()
    return PeerOptions(
        seed=given.seed,
        env=given.env,
        threshold=given.threshold,
        timeout_s=given.timeout_s,
        threads=given.threads,
        settings=given.settings,
        algorithm=getattr(given, "algorithm", ""),
        steps=given.steps,
        evaluate=given.evaluate,
    )


def now_s() -> float:
    """Seconds of the monotonic clock, which all processes of one machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
