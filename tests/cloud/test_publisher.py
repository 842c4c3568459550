"""When a version is due: rules that keep devices which pace themselves by versions going."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import pytest
from strategies import cartpole_spec, make_chunk

from cloud_learner.config import TrainingConfig
from cloud_learner.downlink.published import Published
from cloud_learner.training.brain import Brain
from cloud_learner.training.experience import Batch, Fresh, Transitions
from cloud_learner.training.publisher import Publisher, PublisherParts
from shoal.errors import PolicyLogError

BATCH = cast("Batch", object())
DRAWN = cast("Transitions", object())
FRESH = Fresh.of(make_chunk(cartpole_spec()))  # 8 transitions


class Told:
    """What a publisher tells of a failure."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.fleet = self

    def raise_condition(self, name: str, message: str) -> None:
        self.counters[name] += 1


def publisher(data: str = "rollouts", **training: object) -> Publisher:
    parts = cast("PublisherParts", object())
    config = TrainingConfig(**training)  # type: ignore[arg-type]
    return Publisher(parts, config, data=data)  # type: ignore[arg-type]


def test_every_batch_of_rollouts_gives_a_version_by_default() -> None:
    publishing = publisher()
    publishing.note_step(BATCH)
    assert publishing.due(16, waiting=0)


def test_a_learner_that_is_behind_catches_up_between_versions_but_not_for_ever() -> None:
    publishing = publisher(catch_up_batches=3, batch_steps=8)
    due = []
    for batch in range(1, 4):
        publishing.note_step(BATCH)
        due.append(publishing.due(16 * batch, waiting=16))
    assert due == [False, False, True]
    publishing = publisher(catch_up_batches=3, batch_steps=8)
    publishing.note_step(BATCH)
    assert publishing.due(16, waiting=15)  # one batch more is no backlog


def test_no_version_is_due_without_an_update() -> None:
    publishing = publisher()
    publishing.note_step(BATCH)
    assert not publishing.due(0, waiting=0)
    assert not publishing.due_before_waiting(0)


def test_transitions_that_lie_in_replay_are_no_backlog_and_delay_no_version() -> None:
    publishing = publisher("transitions", publish_interval=100, batch_steps=8)
    publishing.note_step(DRAWN)
    assert publishing.due(100, waiting=1_000_000)


@pytest.mark.parametrize(("interval", "needed"), [(0, 100), (7, 7)])
def test_updates_from_transitions_are_published_at_intervals(interval: int, needed: int) -> None:
    publishing = publisher("transitions", publish_interval=interval)
    publishing.note_step(DRAWN)
    assert not publishing.due(needed - 1, waiting=0)
    assert publishing.due(needed, waiting=0)


def test_before_it_waits_for_data_it_publishes_whatever_it_has() -> None:
    publishing = publisher("transitions", publish_interval=50)
    publishing.note_step(DRAWN)
    assert not publishing.due(1, waiting=0)
    assert publishing.due_before_waiting(1)


@pytest.mark.parametrize("interval", [0, 20, 1_000_000])
def test_while_it_only_stores_no_chunk_leaves_devices_waiting(interval: int) -> None:
    publishing = publisher("transitions", publish_interval=interval)
    assert not publishing.due_before_waiting(0)
    publishing.note_step(FRESH)
    assert publishing.due_before_waiting(0)


@pytest.mark.parametrize(("mode", "rest_s"), [("async", 1.8), ("lockstep", 0.0)])
def test_an_idle_learner_spends_a_tenth_of_its_time_on_publishing(mode: str, rest_s: float) -> None:
    now_s = 100.0

    class Failing(Publisher):
        def _make(self, brain: Brain, reason: str) -> Published:
            nonlocal now_s
            now_s += 0.2
            raise PolicyLogError("disk full")

    config = TrainingConfig(mode=mode)  # type: ignore[arg-type]
    parts = cast("PublisherParts", Told())
    publishing = Failing(parts, config, data="transitions", clock=lambda: now_s)
    assert publishing.rest_s() == 0.0
    asyncio.run(publishing.publish(cast("Brain", object())))
    assert publishing.rest_s() == pytest.approx(rest_s)
    now_s += 1.8
    assert publishing.rest_s() == pytest.approx(0.0)


def test_in_lockstep_every_batch_gives_a_version_however_much_waits() -> None:
    publishing = publisher(mode="lockstep", publish_interval=1000)
    assert not publishing.due(0, waiting=0)
    publishing.note_step(BATCH)
    assert publishing.due(1, waiting=1_000_000)


def test_in_lockstep_a_batch_whose_updates_were_all_passed_over_gives_a_version_too() -> None:
    """Or the whole fleet would wait for ever for one that never comes."""
    publishing = publisher(mode="lockstep")
    publishing.note_step(BATCH)
    assert publishing.due(0, waiting=0)
    assert publishing.due_before_waiting(0)  # it could not be published: it is owed still
