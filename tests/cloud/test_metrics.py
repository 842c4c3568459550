"""What TensorBoard is told, read back from its event file."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from strategies import cartpole_spec
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.custom_scalar import layout_pb2

from cloud_learner.training.learner import StepMetrics
from cloud_learner.training.metrics import LAG_BUCKETS, Metrics, levels_of, scalars_of
from shoal.v1 import fleet_pb2

STEP = StepMetrics(
    updates=48,
    values={
        "policy_loss": 0.25,
        "value_loss": 0.5,
        "entropy": 0.625,
        "kl": 0.0625,
        "explained_variance": 0.75,
        "kl_staleness": 0.125,
        "lag_mean": 12.0,
        "my_own_number": 3.0,
    },
)
TRAINING = fleet_pb2.Training(
    env_steps=2048, return_mean=42.0, return_window=7, length_mean=41.0, kl_quantization=0.03125
)


def events(directory: Path) -> list[Event]:
    (path,) = directory.glob("events.out.tfevents.*")
    return [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]


def tags(event: Event) -> set[str]:
    return {value.tag for value in event.summary.value}


def test_writes_what_a_person_watches(tmp_path: Path) -> None:
    with Metrics(tmp_path, enabled=True, clock=lambda: 1.5) as metrics:
        metrics.write(STEP, TRAINING, np.array([0, 16, 16, 32]))
    *_, event = events(tmp_path)
    values = {v.tag: v.simple_value for v in event.summary.value}
    assert (event.step, event.wall_time) == (2048, 1.5)
    assert values["return/mean_100"] == 42.0
    assert values["return/length_mean_100"] == 41.0
    assert values["loss/policy"] == 0.25
    assert values["loss/value"] == 0.5
    assert values["policy/entropy"] == 0.625
    assert values["policy/kl"] == 0.0625
    assert values["value/explained_variance"] == 0.75
    assert values["gap/kl_staleness"] == 0.125
    assert values["gap/kl_quantization"] == 0.03125
    assert values["lag/mean"] == 12.0
    assert values["optimiser/updates"] == 48.0
    assert "throughput/env_steps_per_s" in values


def test_the_lag_histogram_holds_every_lane(tmp_path: Path) -> None:
    lags = np.array([0, 16, 16, 32], np.int64)
    with Metrics(tmp_path, enabled=True) as metrics:
        metrics.write(STEP, TRAINING, lags)
    *_, event = events(tmp_path)
    (histogram,) = [v.histo for v in event.summary.value if v.tag == "lag/histogram"]
    assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (0.0, 32.0, 4.0, 64.0)
    assert sum(histogram.bucket) == 4.0
    assert len(histogram.bucket) == len(histogram.bucket_limit) == LAG_BUCKETS


def test_an_algorithms_own_numbers_are_kept() -> None:
    assert scalars_of(STEP, TRAINING)["algorithm/my_own_number"] == 3.0


def test_means_over_no_episodes_are_left_out() -> None:
    before = fleet_pb2.Training(return_mean=float("nan"))
    assert not [tag for tag in scalars_of(STEP, before) if tag.startswith("return/")]


def test_every_batch_is_one_event(tmp_path: Path) -> None:
    with Metrics(tmp_path, enabled=True) as metrics:
        for steps in (1, 2, 3):
            metrics.write(STEP, fleet_pb2.Training(env_steps=steps), np.array([1]))
    batches = [e.step for e in events(tmp_path) if "optimiser/updates" in tags(e)]
    assert batches == [1, 2, 3]


def test_threshold_and_published_score_stand_beside_the_mean_return_in_one_chart(
    tmp_path: Path,
) -> None:
    with Metrics(tmp_path, enabled=True) as metrics:
        metrics.levels = levels_of(cartpole_spec(), "cloud_learner.algorithms.appo:APPO")
        for _ in range(2):
            metrics.write(STEP, TRAINING, np.array([1]))
    found = events(tmp_path)
    for event in found[-2:]:
        values = {v.tag: v.simple_value for v in event.summary.value}
        assert (values["return/mean_100"], values["return/threshold"]) == (42.0, 475.0)
        assert values["return/published"] == 500.0
    (config,) = [v for e in found for v in e.summary.value if v.tag == "custom_scalars__config__"]
    layout = layout_pb2.Layout.FromString(config.tensor.string_val[0])
    (chart,) = layout.category[0].chart
    assert list(chart.multiline.tag) == ["return/mean_100", "return/threshold", "return/published"]


@pytest.mark.parametrize("threshold", [None, 1.5])
def test_what_is_not_known_is_not_drawn(threshold: float | None) -> None:
    spec = replace(cartpole_spec(), env_id="rover:make", reward_threshold=threshold)
    levels = levels_of(spec, "examples.own:Own")
    assert levels == ({} if threshold is None else {"return/threshold": threshold})


def test_writes_nothing_when_it_is_not_enabled(tmp_path: Path) -> None:
    with Metrics(tmp_path / "tensorboard", enabled=False) as metrics:
        metrics.write(STEP, TRAINING, np.array([1]))
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize("enabled", [True, False])
def test_closing_ends_it_and_later_batches_are_ignored(tmp_path: Path, enabled: bool) -> None:  # noqa: FBT001 - a parameter
    with Metrics(tmp_path, enabled=enabled) as metrics:
        pass
    metrics.write(STEP, TRAINING, np.array([1]))


@dataclass
class FullDisk:
    """A writer whose disk is full, from one call on."""

    full_at: str
    calls: list[str] = field(default_factory=list)

    def open(self, directory: Path) -> FullDisk:
        self._do("open")
        assert directory.parent.is_dir()
        return self

    def add_event(self, event: object) -> None:
        assert isinstance(event, Event)
        self._do("write")

    def close(self) -> None:
        self._do("close")

    def _do(self, call: str) -> None:
        self.calls.append(call)
        if call == self.full_at:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("full_at", ["open", "write", "close"])
def test_a_full_disk_is_counted_and_told_once_and_never_ends_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, full_at: str
) -> None:
    counters: Counter[str] = Counter()
    disk = FullDisk(full_at)
    with (
        caplog.at_level(logging.WARNING, "shoal"),
        Metrics(
            tmp_path / "tensorboard", enabled=True, counters=counters, open_writer=disk.open
        ) as metrics,
    ):
        for _ in range(3):
            metrics.write(STEP, TRAINING, np.array([1]))
    assert counters["metrics_failures"] == 1
    assert [record.getMessage() for record in caplog.records] == ["metrics_off"]


def test_an_event_file_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    counters: Counter[str] = Counter()
    with Metrics(tmp_path / "tensorboard", enabled=True, counters=counters) as metrics:
        metrics.write(STEP, TRAINING, np.array([1]))
    assert counters["metrics_failures"] == 1
