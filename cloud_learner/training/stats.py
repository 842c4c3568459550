"""The state of training: returns, steps, lag, throughput."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.episodes import Episode
from shoal.trajectory import Chunk
from shoal.v1 import fleet_pb2 as pb

RETURN_WINDOW: Final = 100
LAG_WINDOW: Final = 2048
RATE_WINDOW_S: Final = 10.0
STALENESS_VERSIONS: Final = 4096
"""Policy versions whose staleness gap is kept, the newest."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the journal already held when the learner started."""

    env_steps: int = 0
    episodes: int = 0
    bytes_up: int = 0


class TrainingStats:
    """Folds chunks, steps and publications; `training` is the whole state.

    stats = TrainingStats()
    stats.note_chunk(chunk)
    stats.return_mean      # of the last 100 episodes; NaN before the first
    """

    def __init__(
        self, progress: Progress | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        before = progress if progress is not None else Progress()
        self._clock = clock
        self._started_s = clock()
        self._env_steps = before.env_steps
        self._episodes = before.episodes
        self._bytes_up = before.bytes_up
        self._last: deque[Sequence[Episode]] = deque()  # of each chunk, the oldest first
        self._last_count = 0
        self._lags: deque[int] = deque(maxlen=LAG_WINDOW)
        self._rate: deque[tuple[float, int]] = deque([(self._started_s, self._env_steps)])
        self._values: Mapping[str, float] = {}
        self._updates = 0
        self._version = 0
        self._precision = ""
        self._kl_quantization = 0.0
        self._fill = 0.0
        self._staleness: dict[int, list[float]] = {}

    @property
    def fill(self) -> float:
        """How much of what the next step waits for was there when it was last looked at, 0 to 1."""
        return self._fill

    @property
    def env_steps(self) -> int:
        """Transitions of accepted chunks."""
        return self._env_steps

    @property
    def episodes(self) -> int:
        """Episodes that ended in accepted chunks."""
        return self._episodes

    @property
    def return_mean(self) -> float:
        """Mean return of the last episodes; NaN before the first."""
        return _mean([episode.total_return for episode in self.window])

    @property
    def length_mean(self) -> float:
        """Mean length of the last episodes, in environment steps; NaN before the first."""
        return _mean([float(episode.length) for episode in self.window])

    @property
    def window(self) -> tuple[Episode, ...]:
        """The last episodes, oldest first."""
        return tuple(chain(*self._last))[-RETURN_WINDOW:]

    def note_bytes(self, count: int) -> None:
        """Counts trajectory payload bytes received."""
        self._bytes_up += count

    def note_chunk(self, chunk: Chunk) -> None:
        """Counts an accepted chunk, once."""
        self.note_experience(chunk.transitions, chunk.episodes)

    def note_experience(self, transitions: int, episodes: Sequence[Episode]) -> None:
        """Counts experience, of a chunk or of what a device only tells about its own."""
        self._env_steps += transitions
        self._episodes += len(episodes)
        self._keep_last(episodes)
        now_s = self._clock()
        self._rate.append((now_s, self._env_steps))
        while len(self._rate) > 2 and now_s - self._rate[1][0] > RATE_WINDOW_S:  # noqa: PLR2004 - ends
            self._rate.popleft()

    def restore_window(self, episodes: tuple[Episode, ...]) -> None:
        """Puts back the last episodes of an earlier run, oldest first."""
        self._last.clear()
        self._last_count = 0
        self._keep_last(episodes)

    def _keep_last(self, episodes: Sequence[Episode]) -> None:
        """Keeps what the window needs; single episodes are made when somebody looks."""
        if count := len(episodes):
            self._last.append(episodes)
            self._last_count += count
        while self._last and self._last_count - len(self._last[0]) >= RETURN_WINDOW:
            self._last_count -= len(self._last.popleft())

    def note_step(
        self, values: Mapping[str, float], *, updates: int, lags: NDArray[np.int64]
    ) -> None:
        """Notes what a step of the learner said, and the lags [B] it trained from."""
        self._values = values
        self._updates = updates
        self._lags.extend(int(lag) for lag in lags)

    def note_staleness(self, versions: Collection[int], kl: float | None) -> None:
        """Notes the staleness gap of a batch, in nats, if one version alone made it.

        Args:
            versions: The policy versions that acted in the batch.
            kl: As the learner measured it; None if it did not.
        """
        if kl is None or len(versions) != 1:
            return
        (version,) = versions
        self._staleness.setdefault(version, []).append(kl)
        if len(self._staleness) > STALENESS_VERSIONS:
            del self._staleness[min(self._staleness)]

    def staleness_of(self, version: int) -> float | None:
        """The mean staleness gap of the batches of a version, in nats; None if there was none."""
        gaps = self._staleness.get(version)
        return _mean(gaps) if gaps else None

    def note_fill(self, fill: float) -> None:
        """Notes how full the next batch is, or the warm-up."""
        self._fill = fill

    def note_updates(self, updates: int) -> None:
        """Notes where the learner starts."""
        self._updates = updates

    def note_published(self, version: int, *, precision: str, kl_quantization: float) -> None:
        """Notes what is published now."""
        self._version = version
        self._precision = precision
        self._kl_quantization = kl_quantization

    def steps_per_s(self) -> float:
        """Transitions a second over the last seconds."""
        (began_s, before), now_s = self._rate[0], self._clock()
        if now_s - began_s > 2 * RATE_WINDOW_S and len(self._rate) > 1:
            began_s, before = self._rate[-1][0], self._env_steps
        elapsed_s = now_s - began_s
        return (self._env_steps - before) / elapsed_s if elapsed_s > 0 else 0.0

    def to_pb(self) -> pb.Training:
        """As a message, without what others know: audit, devices, replay, bytes down."""
        lags = np.fromiter(self._lags, dtype=np.int64) if self._lags else np.zeros(1, np.int64)
        return pb.Training(
            env_steps=self._env_steps,
            episodes=self._episodes,
            return_mean=self.return_mean,
            return_window=len(self.window),
            length_mean=self.length_mean,
            updates=self._updates,
            policy_version=self._version,
            lag_p50=float(np.percentile(lags, 50)),
            lag_p99=float(np.percentile(lags, 99)),
            lag_max=float(lags.max()),
            precision=self._precision,
            kl_quantization=self._kl_quantization,
            kl_staleness=self._values.get("kl_staleness", 0.0),
            bytes_up=self._bytes_up,
            uptime_s=self._clock() - self._started_s,
            steps_per_s=self.steps_per_s(),
            entropy=self._values.get("entropy", 0.0),
            value_loss=self._values.get("value_loss", 0.0),
            policy_loss=self._values.get("policy_loss", 0.0),
            explained_variance=self._values.get("explained_variance", 0.0),
        )


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
