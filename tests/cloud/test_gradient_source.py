"""When updates give a policy, and what is counted of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sim import on_loop
from strategies import RUN_ID, cartpole_spec, rover_spec, some_observations

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.gradients.making import live_of
from cloud_learner.gradients.rules import Outcome, judge
from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.gradients.source import (
    LONGEST_QUIET_S,
    PUBLISH_INTERVAL,
    SHORTEST_QUIET_S,
    GradientSource,
)
from cloud_learner.gradients.tally import MAX_METRICS, Tally
from cloud_learner.journal.audit import RunKey
from cloud_learner.training.experience import Likeness
from cloud_learner.training.source import Moment
from cloud_learner.training.start import build_brain
from cloud_learner.training.stats import TrainingStats
from shoal.layout import ObservationLayout
from shoal.observation_statistics import ObservationStatistics, numbers_of
from shoal.spaces import EnvSpec

SPEC = cartpole_spec()


class Clock:
    """Says what a test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A source with a small network, and the pushes that the service would make."""

    def __init__(self, interval: int = 4, *, spec: EnvSpec = SPEC, normalize: bool = False) -> None:
        self.clock, self.counters = Clock(), Counter[str]()
        self.source = GradientSource(Tally(self.counters), interval=interval, clock=self.clock)
        training = TrainingConfig(
            mode="gradients", network=NetworkConfig(hidden=(4,), normalize=normalize)
        )
        config = LearnerConfig("reef", Path(), Path(), training=training)
        choice = load_algorithm(training.algorithm, {})
        self.brain = build_brain(spec, config, choice)
        self.live = live_of(self.brain, config)
        self.source.attach(self.brain, self.live, TrainingStats())

    async def push(self, *, lag: int = 0, **metrics: float) -> None:
        gradient = np.ones(self.live.parameters, np.float32)
        self.source.tally.note_applied("pi-1", lag=lag, transitions=8, metrics=metrics)
        await self.live.apply(gradient, judge(lag, 1.0, GradientsConfig()))
        self.source.note_applied(None)


@on_loop
async def test_so_many_updates_give_a_policy() -> None:
    bench = Bench(interval=3)
    for _ in range(3):
        assert not bench.source.ready()
        await bench.push()
    assert bench.source.ready()
    await bench.source.wait_ready(unless=lambda: False)
    assert bench.source.take(Moment(0)).work


@on_loop
async def test_fewer_do_after_a_pause_that_is_long_beside_those_between_them() -> None:
    bench = Bench(interval=100)
    for _ in range(50):
        await bench.push()
        bench.clock.now_s += 0.005
    assert not bench.source.ready()
    bench.clock.now_s += 0.05
    assert bench.source.ready()
    slow = Bench(interval=100)
    await slow.push()
    slow.clock.now_s += SHORTEST_QUIET_S
    assert not slow.source.ready(), "nobody knows yet how far apart they come"
    slow.clock.now_s += LONGEST_QUIET_S
    assert slow.source.ready()


@on_loop
async def test_waiting_ends_when_something_else_is_due() -> None:
    bench, due = Bench(), [False]
    assert not bench.source.take(Moment(0)).work
    due[0] = True
    bench.source.wake()
    await bench.source.wait_ready(unless=lambda: due[0])


@on_loop
async def test_a_step_takes_over_weights_and_count_and_says_what_was_applied() -> None:
    bench = Bench()
    before = bench.live.shards.flat.copy()
    await bench.push(lag=1, entropy=0.5)
    await bench.push(lag=3, entropy=0.7)
    algorithm = bench.brain.learner.algorithm
    np.testing.assert_array_equal(algorithm.flat, before)  # type: ignore[attr-defined]
    stepped = bench.source.step(bench.brain.learner, bench.source.take(Moment(0)))
    np.testing.assert_array_equal(algorithm.flat, bench.live.shards.flat)  # type: ignore[attr-defined]
    assert not np.array_equal(bench.live.shards.flat, before)
    assert bench.brain.learner.updates == 2
    assert (stepped.transitions, stepped.lags.tolist()) == (16, [1, 3])
    assert stepped.metrics is not None
    assert stepped.metrics.values["entropy"] == 0.6
    assert isinstance(stepped.experience, Likeness)
    assert len(stepped.experience.observations) == 0, "nothing was told of observations"
    assert not bench.source.take(Moment(0)).work


@on_loop
async def test_of_nested_observations_those_are_made_up_that_the_normalizer_knows_of() -> None:
    spec = rover_spec()
    layout = ObservationLayout.of(spec.observation)
    bench = Bench(spec=spec, normalize=True)
    numbers = numbers_of(
        some_observations(spec.observation, (500,), np.random.default_rng(3)), layout
    )
    await bench.push()
    first = bench.source.step(bench.brain.learner, bench.source.take(Moment(0)))
    assert isinstance(first.experience, Likeness)
    assert len(first.experience.observations) == 0
    assert bench.source.normalizer is not None
    told = ObservationStatistics.of(numbers)
    bench.source.normalizer.note(RunKey("pi-1", RUN_ID), 0, told.to_pb())
    await bench.push()
    second = bench.source.step(bench.brain.learner, bench.source.take(Moment(0)))
    assert isinstance(second.experience, Likeness)
    drawn = numbers_of(second.experience.observations, layout)
    deviation = np.sqrt(told.squares / told.count)
    np.testing.assert_array_less(np.abs(drawn.mean(0) - told.mean), 0.5 * deviation + 1e-6)
    np.testing.assert_allclose(drawn.std(0), deviation, rtol=0.5, atol=1e-6)


def test_sixteen_updates_are_a_policys_unless_told_otherwise() -> None:
    assert GradientSource(Tally(Counter()), interval=0)._interval == PUBLISH_INTERVAL


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(list(Outcome))), max_size=60))
def test_every_update_is_counted_once_by_device_and_in_all(
    pushed: list[tuple[str, Outcome]],
) -> None:
    counters = Counter[str]()
    tally = Tally(counters)
    for device, outcome in pushed:
        if outcome is Outcome.APPLIED:
            tally.note_applied(device, lag=0, transitions=1, metrics={})
        else:
            tally.note(device, outcome)
    by_device = {device: Counter(o.value for d, o in pushed if d == device) for device in "abc"}
    assert all(dict(tally.of(device)) == dict(by_device[device]) for device in "abc")
    applied = sum(outcome is Outcome.APPLIED for _, outcome in pushed)
    refused = sum(n for name, n in counters.items() if name.startswith("updates_refused_"))
    assert counters["updates_pushed"] == len(pushed) == applied + refused
    assert counters["updates_applied"] == applied == tally.take().updates


def test_scalars_that_devices_make_up_take_bounded_memory() -> None:
    tally = Tally(Counter())
    for number in range(10 * MAX_METRICS):
        tally.note_applied("pi-1", lag=0, transitions=1, metrics={f"made_up_{number}": 1.0})
    assert len(tally.take().means) == MAX_METRICS
