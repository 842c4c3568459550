"""Statistics of runs: each run counts once, whatever comes twice, late, or in another order."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cloud_learner.gradients.run_statistics import MAX_ENDED, RUNS_OF_DEVICE, RunStatistics
from cloud_learner.journal.audit import RunKey
from cloud_learner.training.checkpoint import _with_arrays, _with_tensors
from shoal.errors import CheckpointError, StatisticsRefused
from shoal.observation_statistics import ObservationStatistics

NUMBERS = 3
Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Message:
    run: RunKey
    seq: int
    told: ObservationStatistics


@dataclass(frozen=True)
class Fleet:
    """Every message of some runs, and every row that they are of."""

    messages: list[Message]
    rows: Rows


def run_of(device: str, number: int) -> RunKey:
    return RunKey(device, number.to_bytes(16, "big"))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Devices with few enough runs that none has ended, each with cumulative messages."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    messages: list[Message] = []
    rows: list[Rows] = []
    for device in draw(st.sets(st.sampled_from("abc"), min_size=1)):
        for number in range(draw(st.integers(1, RUNS_OF_DEVICE))):
            cuts = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
            made = rng.normal(50.0, [1.0, 1e-2, 1e3], (sum(cuts), NUMBERS))
            rows.append(made)
            messages.extend(
                Message(run_of(device, number), seq, ObservationStatistics.of(made[:end]))
                for seq, end in enumerate(np.cumsum(cuts))
            )
    return Fleet(messages, np.concatenate(rows))


def told(messages: list[Message], *, most: int | None = None) -> RunStatistics:
    runs = RunStatistics(NUMBERS, most=most)
    for message in messages:
        runs.note(message.run, message.seq, message.told)
    return runs


def seen_by(runs: RunStatistics) -> ObservationStatistics:
    seen = runs.merged()
    assert seen is not None
    return seen


def assert_equal(one: ObservationStatistics, other: ObservationStatistics) -> None:
    assert one.count == other.count
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.squares, other.squares)


def assert_those_of(seen: ObservationStatistics, rows: Rows) -> None:
    assert seen.count == len(rows)
    np.testing.assert_allclose(seen.mean, rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(seen.squares / seen.count, rows.var(0), rtol=1e-9)


@given(fleets())
def test_all_runs_together_give_the_mean_and_variance_of_every_row(fleet: Fleet) -> None:
    assert_those_of(seen_by(told(fleet.messages)), fleet.rows)


@given(st.data())
def test_duplicates_losses_and_any_order_change_nothing_at_all(data: st.DataObject) -> None:
    fleet = data.draw(fleets())
    latest = {message.run: message for message in fleet.messages}
    lost = data.draw(st.lists(st.sampled_from(fleet.messages), max_size=4))
    kept = [m for m in fleet.messages if m not in lost or m is latest[m.run]]
    twice = data.draw(st.lists(st.sampled_from(fleet.messages), max_size=6))
    shuffled = data.draw(st.permutations([*kept, *twice]))
    assert_equal(seen_by(told(shuffled)), seen_by(told(fleet.messages)))


@given(fleets(), st.integers(1, 3))
def test_runs_that_ended_for_want_of_room_are_in_the_sum_and_counted_once(
    fleet: Fleet, room: int
) -> None:
    runs = told(fleet.messages, most=room)
    assert len(runs) <= room
    assert_those_of(seen_by(runs), fleet.rows)
    for message in fleet.messages:
        with contextlib.suppress(StatisticsRefused):  # it ended
            runs.note(message.run, message.seq, message.told)
    assert_those_of(seen_by(runs), fleet.rows)


def test_of_one_device_the_latest_runs_may_tell_more_and_earlier_ones_have_ended() -> None:
    rows = np.arange(30, dtype=np.float64).reshape(10, NUMBERS)
    runs = RunStatistics(NUMBERS)
    for number in range(RUNS_OF_DEVICE + 2):
        runs.note(run_of("pi-1", number), 0, ObservationStatistics.of(rows))
    assert len(runs) == RUNS_OF_DEVICE
    with pytest.raises(StatisticsRefused, match="ended") as refused:
        runs.note(run_of("pi-1", 1), 1, ObservationStatistics.of(np.tile(rows, (9, 1))))
    assert refused.value.reason == "ended"
    runs.note(run_of("pi-1", 2), 1, ObservationStatistics.of(np.tile(rows, (2, 1))))
    assert seen_by(runs).count == 10 * (RUNS_OF_DEVICE + 3)


def test_many_restarts_of_many_devices_take_bounded_memory() -> None:
    told_once = ObservationStatistics.of(np.ones((2, NUMBERS)))
    runs = RunStatistics(NUMBERS, most=8)
    for number in range(500):
        runs.note(run_of(f"pi-{number % 20}", number), 0, told_once)
    assert len(runs) == 8
    assert len(runs._of_device) <= 8
    assert len(runs._ended) <= MAX_ENDED
    assert seen_by(runs).count == 1000


def test_a_run_that_tells_of_fewer_than_before_is_refused_and_what_it_told_stays() -> None:
    rows = np.arange(30, dtype=np.float64).reshape(10, NUMBERS)
    runs = told([Message(run_of("pi-1", 0), 3, ObservationStatistics.of(rows))])
    with pytest.raises(StatisticsRefused) as refused:
        runs.note(run_of("pi-1", 0), 4, ObservationStatistics.of(rows[:5]))
    assert refused.value.reason == "backwards"
    assert_those_of(seen_by(runs), rows)


def test_nothing_told_is_nothing_seen_but_what_was_seen_before_counts() -> None:
    assert RunStatistics(NUMBERS).merged() is None
    rows = np.arange(30, dtype=np.float64).reshape(10, NUMBERS)
    runs = RunStatistics(NUMBERS, begins=ObservationStatistics.of(rows[:4]))
    runs.note(run_of("pi-1", 0), 0, ObservationStatistics.of(rows[4:]))
    assert_those_of(seen_by(runs), rows)


@given(st.data())
def test_a_checkpoint_goes_on_bit_for_bit(data: st.DataObject) -> None:
    fleet = data.draw(fleets())
    cut, room = data.draw(st.integers(0, len(fleet.messages))), data.draw(st.integers(1, 4))
    whole = told(fleet.messages[:cut], most=room)
    resumed = RunStatistics(NUMBERS, most=room)
    resumed.load_state_dict(_with_arrays(_with_tensors(whole.state_dict())))
    for message in [*fleet.messages[cut:], *fleet.messages[:3]]:
        for runs in (whole, resumed):
            with contextlib.suppress(StatisticsRefused):  # it ended
                runs.note(message.run, message.seq, message.told)
    assert_equal(seen_by(resumed), seen_by(whole))
    for name, value in whole.state_dict().items():
        np.testing.assert_equal(resumed.state_dict()[name], value)


def test_a_checkpoint_of_other_observations_is_refused() -> None:
    state = RunStatistics(NUMBERS).state_dict()
    with pytest.raises(CheckpointError, match="another state_dir"):
        RunStatistics(NUMBERS + 1).load_state_dict(state)
