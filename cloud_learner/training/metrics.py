"""TensorBoard: one event a batch, on the axis of environment steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cloud_learner.training.learner import StepMetrics
from cloud_learner.training.published_score import published_score
from shoal.logs import get_logger
from shoal.spaces import EnvSpec
from shoal.v1 import fleet_pb2

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import HistogramProto

FLUSH_S: Final = 5
MEAN, THRESHOLD, PUBLISHED = "return/mean_100", "return/threshold", "return/published"
LAG_BUCKETS: Final = 16
_log = get_logger("metrics")
_TAGS: Final[Mapping[str, str]] = {
    "policy_loss": "loss/policy",
    "value_loss": "loss/value",
    "entropy": "policy/entropy",
    "kl": "policy/kl",
    "clip_fraction": "policy/clip_fraction",
    "explained_variance": "value/explained_variance",
    "value_mean": "value/mean",
    "value_target_mean": "value/target_mean",
    "advantage_std": "value/advantage_std",
    "importance_mean": "importance/mean",
    "importance_truncated": "importance/truncated",
    "kl_staleness": "gap/kl_staleness",
    "gradient_norm": "optimiser/gradient_norm",
    "learning_rate": "optimiser/learning_rate",
    "skipped": "optimiser/skipped",
    "weights_finite": "optimiser/weights_finite",
    "critic_gradient_norm": "optimiser/critic_gradient_norm",
    "critic_loss": "loss/critic",
    "epsilon": "policy/epsilon",
    "temperature": "policy/temperature",
    "reward_factor": "value/reward_factor",
    "lag_mean": "lag/mean",
    "lag_max": "lag/max",
    "step_ms": "throughput/step_ms",
    "transitions_per_s": "throughput/learner_transitions_per_s",
}


class EventWriter(Protocol):
    """What is needed of TensorBoard's event writer."""

    def add_event(self, event: object) -> None:
        """Takes an event to be written soon."""

    def close(self) -> None:
        """Writes what is left."""


class Metrics:
    """Writes what TensorBoard shows; nothing at all when it is not enabled.

    A disk that refuses never ends training: the rest of the run is not shown, and that is counted.

    >>> with Metrics(directory, enabled=True) as metrics:
    ...     metrics.write(learner.step(batch), stats.to_pb(), batch.lags)

    Attributes:
        levels: What the mean return is seen against, of `levels_of`; written with every event.
    """

    def __init__(
        self,
        directory: Path,
        *,
        enabled: bool,
        counters: Counter[str] | None = None,
        open_writer: Callable[[Path], EventWriter] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens an event file, if enabled.

        Args:
            directory: Where event files go; made if need be.
            enabled: Whether to write.
            counters: Where `metrics_failures` is counted.
            open_writer: Opens an event file; TensorBoard's own when left out.
            clock: Wall clock, for people only.
        """
        self.levels: Mapping[str, float] = {}
        self._clock = clock
        self._directory = directory
        self._counters: Counter[str] = counters if counters is not None else Counter()
        self._writer: EventWriter | None = None
        if enabled:
            try:
                self._writer = (open_writer or _open)(directory)
                self._writer.add_event(_layout())
            except OSError as error:
                self._give_up("open", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as refused:
                self._give_up("close", refused)

    def write(
        self,
        step: StepMetrics,
        training: fleet_pb2.Training,
        lags: NDArray[np.int64],
        *,
        fill: float = 0.0,
    ) -> None:
        """Writes one event.

        Args:
            step: What the learner's step said; names without a tag of their own go to `algorithm/`.
            training: The state of training; its `env_steps` are the axis.
            lags: `[B]` optimiser updates, of the batch.
            fill: How full the batch was when the learner came to it, 0 to 1.
        """
        if self._writer is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - a second to import
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - the same

        scalars = scalars_of(step, training) | {"fleet/batch_fill": fill, **self.levels}
        values = [Summary.Value(tag=tag, simple_value=scalars[tag]) for tag in sorted(scalars)]
        if lags.size:
            values.append(Summary.Value(tag="lag/histogram", histo=_histogram(lags)))
        event = Event(
            wall_time=self._clock(), step=training.env_steps, summary=Summary(value=values)
        )
        try:
            self._writer.add_event(event)
        except OSError as error:
            self._give_up("write", error)

    def _give_up(self, verb: str, error: OSError) -> None:
        """Goes on without, and says so once."""
        self._counters["metrics_failures"] += 1
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):
                writer.close()
        _log.warning(
            "metrics_off",
            directory=str(self._directory),
            problem=f"cannot {verb} the event file: {error}; training goes on without TensorBoard, "
            "free disk space and restart the learner to see it again",
        )


def levels_of(spec: EnvSpec, algorithm: str) -> dict[str, float]:
    """The threshold of an environment and the published score, by tag, where there are any.

    Args:
        spec: Of the environment.
        algorithm: The path of the algorithm, `module:Class`.
    """
    score = published_score(spec.env_id, algorithm.rpartition(":")[2].lower())
    levels = {} if spec.reward_threshold is None else {THRESHOLD: spec.reward_threshold}
    return levels if score is None else levels | {PUBLISHED: score.mean}


def scalars_of(step: StepMetrics, training: fleet_pb2.Training) -> dict[str, float]:
    """Every scalar by its TensorBoard tag; means over no episodes yet are left out."""
    scalars = {_TAGS.get(name, f"algorithm/{name}"): value for name, value in step.values.items()}
    scalars |= {
        "gap/kl_quantization": training.kl_quantization,
        "throughput/env_steps_per_s": training.steps_per_s,
        "throughput/bytes_up": float(training.bytes_up),
        "fleet/episodes": float(training.episodes),
        "fleet/policy_version": float(training.policy_version),
        "fleet/replay_steps": float(training.replay_steps),
        "optimiser/updates": float(step.updates),
    }
    if training.return_window:
        scalars[MEAN] = training.return_mean
        scalars["return/length_mean_100"] = training.length_mean
    return scalars


def _layout() -> object:
    """Has TensorBoard's page of custom scalars draw return and levels in one chart."""
    from tensorboard.compat.proto import (  # noqa: PLC0415 - a second to import
        event_pb2,
        summary_pb2,
        tensor_pb2,
        types_pb2,
    )
    from tensorboard.plugins.custom_scalar import layout_pb2  # noqa: PLC0415 - the same

    lines = layout_pb2.MultilineChartContent(tag=[MEAN, THRESHOLD, PUBLISHED])
    chart = layout_pb2.Chart(title="mean return of the last 100 episodes", multiline=lines)
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title="return", chart=[chart])])
    value = summary_pb2.Summary.Value(
        tag="custom_scalars__config__",  # the plugin's names; its own function needs tensorflow
        tensor=tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING, string_val=[layout.SerializeToString()]
        ),
        metadata=summary_pb2.SummaryMetadata(
            plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="custom_scalars")
        ),
    )
    return event_pb2.Event(summary=summary_pb2.Summary(value=[value]))


def _histogram(lags: NDArray[np.int64]) -> HistogramProto:
    from tensorboard.compat.proto.summary_pb2 import HistogramProto  # noqa: PLC0415 - as above

    counts, edges = np.histogram(lags, bins=LAG_BUCKETS)
    return HistogramProto(
        min=float(lags.min()),
        max=float(lags.max()),
        num=float(lags.size),
        sum=float(lags.sum()),
        sum_squares=float(np.square(lags.astype(np.float64)).sum()),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.astype(np.float64).tolist(),
    )


def _open(directory: Path) -> EventWriter:
    from tensorboard.summary.writer.event_file_writer import (  # noqa: PLC0415 - a second to import
        EventFileWriter,
    )

    writer: EventWriter = EventFileWriter(str(directory), flush_secs=FLUSH_S)
    return writer
