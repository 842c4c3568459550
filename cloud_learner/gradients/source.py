"""Updates that devices push, as a source of the trainer: what to publish, and what to save."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cloud_learner.gradients.fleet_normalizer import FleetNormalizer
from cloud_learner.gradients.live import Live
from cloud_learner.gradients.rules import Seen
from cloud_learner.gradients.tally import Tally
from cloud_learner.quantization.sample import probe_rows
from cloud_learner.training.brain import Brain
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted, Likeness
from cloud_learner.training.learner import Learner, StepMetrics
from cloud_learner.training.source import Backlog, Bell, Draw, Moment, Stepped
from cloud_learner.training.stats import Progress, TrainingStats
from shoal.episodes import Episode
from shoal.layout import ObservationLayout
from shoal.moments import Moments
from shoal.ranges import Ranges

PUBLISH_INTERVAL: Final = 16
"""Updates between two policies when nothing else is asked for."""
QUIET_GAPS: Final = 10.0
SHORTEST_QUIET_S: Final = 0.02
LONGEST_QUIET_S: Final = 0.25
"""When none came for so many times the usual gap between two, within these bounds, updates too few
for a policy give one: devices may wait for it, and those that left will send no more."""
_GAP_DECAY: Final = 0.1
SAMPLE_ROWS: Final = 256
MOMENTS_OF: Final = 20_000
"""Observations that what is known of them counts as, at most: older ones fade."""


class GradientSource:
    """Holds no chunks: a step of the learner takes over what was applied since the last.

    source = GradientSource(tally, interval=16)
    source.attach(brain, live)
    source.note_applied(moments)      # by the service, after each update

    Attributes:
        tally: Counts.
        seen: Which updates came already.
    """

    def __init__(
        self,
        tally: Tally,
        *,
        interval: int,
        cursor: Cursor | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Waits for a brain.

        Args:
            tally: Where the service counts.
            interval: `training.publish_interval`.
            cursor: Of a checkpoint; what the journal holds of another mode stays as it is.
            seed: Of what is drawn to calibrate with.
            clock: Monotonic seconds.
        """
        self.tally = tally
        self.seen = Seen()
        self._interval = interval or PUBLISH_INTERVAL
        self._cursor = cursor or Cursor(0, Ranges())
        self._rng = np.random.default_rng(seed)
        self._clock = clock
        self._bell = Bell()
        self._brain: Brain | None = None
        self._live: Live | None = None
        self._stats: TrainingStats | None = None
        self._layout: ObservationLayout | None = None
        self._normalizer: FleetNormalizer | None = None
        self._moments: Moments | None = None
        self._last_s = 0.0
        self._gap_s = LONGEST_QUIET_S / QUIET_GAPS

    # ------------------------------------------------------------------------------ for the app

    def attach(self, brain: Brain, live: Live, stats: TrainingStats) -> None:
        """Begins with a brain and its live weights."""
        self._brain, self._live, self._stats = brain, live, stats
        self._layout = ObservationLayout.of(brain.spec.observation)
        normalizer = brain.learner.policy.normalizer
        self._normalizer = None if normalizer is None else FleetNormalizer(normalizer)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from a checkpoint; a brain is attached.

        Raises:
            CheckpointError: It is of another network or optimiser, or of other observations.
        """
        if "live" not in state:
            return  # of another mode: its weights are the learner's
        live, brain = self._live, self._brain
        assert live is not None  # noqa: S101
        assert brain is not None  # noqa: S101
        live.load_state_dict(state["live"])  # type: ignore[arg-type] # as it was saved
        live.put_into(brain)
        self.seen.load_state_dict(state["seen"])  # type: ignore[arg-type]
        if isinstance(saved := state.get("moments"), Mapping):
            self._moments = Moments(**saved)
        if self._normalizer is not None and isinstance(saved := state.get("normalizer"), Mapping):
            self._normalizer.load_state_dict(saved)

    def note_published(self, version: int) -> None:
        """Notes that a version was made of the weights and the normalizer as they are."""
        if self._normalizer is not None:
            self._normalizer.note_published(version)

    # --------------------------------------------------------------------------- for the service

    @property
    def live(self) -> Live | None:
        """The weights; None before any space is known."""
        return self._live

    @property
    def layout(self) -> ObservationLayout | None:
        """How observations lie; None before any space is known."""
        return self._layout

    @property
    def normalizer(self) -> FleetNormalizer | None:
        """What devices' statistics of observations go into; None where nothing is normalized."""
        return self._normalizer

    def note_applied(self, moments: Moments | None) -> None:
        """Notes that an update was applied; the tally knows the rest."""
        if moments is not None:
            before = self._moments
            self._moments = moments if before is None else before.merged(moments, most=MOMENTS_OF)
        now_s = self._clock()
        if self.tally.waiting > 1:
            self._gap_s += _GAP_DECAY * (now_s - self._last_s - self._gap_s)
        self._last_s = now_s
        if self.tally.waiting == 1 or self.tally.waiting >= self._interval:
            self._bell.ring()

    # --------------------------------------------------------------------------- for the trainer

    @property
    def steps(self) -> int:
        """No transitions are held."""
        return 0

    @property
    def fill(self) -> float:
        """How near the next policy is."""
        return min(1.0, self.tally.waiting / self._interval)

    @property
    def backlog(self) -> Backlog:
        """None, ever: an update is applied as it comes."""
        return Backlog(0, 1, 0)

    @property
    def cursor(self) -> Cursor:
        """As it was: nothing of the journal is trained from."""
        return self._cursor

    def add(self, items: Iterable[Admitted]) -> None:
        """Takes no chunks: those of another mode stay in the journal."""

    def ready(self) -> bool:
        """Whether there were enough updates, or some and then none for a while."""
        waiting = self.tally.waiting
        quiet = waiting > 0 and self._clock() - self._last_s >= self._quiet_s
        return waiting >= self._interval or quiet

    @property
    def _quiet_s(self) -> float:
        return min(LONGEST_QUIET_S, max(SHORTEST_QUIET_S, QUIET_GAPS * self._gap_s))

    async def wait_ready(self, *, unless: Callable[[], bool]) -> None:
        """Waits until it is `ready`, or `unless` holds."""
        while not (self.ready() or unless()):
            waiting = self.tally.waiting > 0
            left_s = self._last_s + self._quiet_s - self._clock() if waiting else None

            def changed(known: bool = waiting) -> bool:  # noqa: FBT001 - bound here
                return self.ready() or unless() or (self.tally.waiting > 0) != known

            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._bell.wait_for(changed)

    def wake(self) -> None:
        """Has whoever waits look again."""
        self._bell.ring()

    def take(self, moment: Moment) -> Draw:
        """There is work when updates were applied."""
        del moment
        return Draw((), (), work=self.tally.waiting > 0)

    def step(self, learner: Learner, draw: Draw) -> Stepped:
        """Takes over weights, count and normalizer, and says what was applied."""
        del learner, draw
        brain, live = self._brain, self._live
        assert brain is not None  # noqa: S101 - something was applied
        assert live is not None  # noqa: S101
        began = time.perf_counter()
        interval = self.tally.take()
        live.put_into(brain)
        if self._normalizer is not None:
            self._normalizer.follow()
        lags = interval.lags if interval.lags.size else np.zeros(1, np.int64)
        values = dict(interval.means) | {
            "skipped": 0.0,
            "weights_finite": float(np.isfinite(live.shards.flat.sum())),
            "lag_mean": float(lags.mean()),
            "lag_max": float(lags.max()),
            "step_ms": (time.perf_counter() - began) * 1e3,
        }
        return Stepped(
            experience=Likeness(self._drawn()),
            transitions=interval.transitions,
            lags=interval.lags,
            metrics=StepMetrics(updates=brain.learner.updates, values=values),
        )

    def state_dict(self) -> Mapping[str, object]:
        """Weights, optimisers, which updates came, and what devices told of their experience."""
        if self._live is None or self._stats is None:
            return {}
        window = self._stats.window
        state: dict[str, object] = {
            "live": self._live.state_dict(),
            "seen": self.seen.state_dict(),
            "progress": {
                "env_steps": self._stats.env_steps,
                "episodes": self._stats.episodes,
                "returns": np.array([one.total_return for one in window], np.float64),
                "lengths": np.array([one.length for one in window], np.int64),
            },
        }
        if (moments := self._moments) is not None:
            state["moments"] = {
                "count": moments.count,
                "mean": moments.mean.copy(),
                "variance": moments.variance.copy(),
                "low": moments.low.copy(),
                "high": moments.high.copy(),
            }
        if self._normalizer is not None:
            state["normalizer"] = self._normalizer.state_dict()
        return state

    def _drawn(self) -> NDArray[np.generic]:
        layout, moments = self._layout, self._moments
        assert layout is not None  # noqa: S101
        drawn: NDArray[np.generic]
        if moments is not None:
            drawn = moments.draw(SAMPLE_ROWS, layout, self._rng)
            return drawn
        seen = None if self._normalizer is None else self._normalizer.seen
        if seen is None:
            return np.zeros((0, *layout.shape), layout.dtype.newbyteorder("="))
        # Of nested observations there are no moments: what the normalizer knows of them must do.
        drawn = probe_rows(layout, self._rng, seen)
        return drawn


def stats_of(state: Mapping[str, object], before: TrainingStats) -> TrainingStats:
    """The state of training that a checkpoint of this mode holds; `before` where it holds none."""
    progress = state.get("progress")
    if not isinstance(progress, Mapping):
        return before
    stats = TrainingStats(Progress(int(progress["env_steps"]), int(progress["episodes"])))
    pairs = zip(progress["returns"].tolist(), progress["lengths"].tolist(), strict=True)
    stats.restore_window(tuple(Episode(0, 0, total, length) for total, length in pairs))
    return stats
