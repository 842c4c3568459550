"""Statistics of observed numbers: merged in any way they are those of all of them together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import cartpole_spec, observations, rover_spec, spaces

from shoal.errors import StatisticsRefused
from shoal.layout import ObservationLayout
from shoal.observation_statistics import (
    MAX_COUNT,
    MAX_MAGNITUDE,
    ObservationStatistics,
    count_numbers,
    merged,
    numbers_of,
)
from shoal.spaces import Discrete, Space
from shoal.v1 import statistics_pb2 as pb

NUMBERS = 3
Rows = NDArray[np.float64]


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    """Rows `[R, 3]` of columns whose means and deviations are far apart."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    rows = draw(st.integers(2, 200))
    means = draw(st.sampled_from([0.0, 1.0, -1e3, 1e6]))
    scales = np.array([1.0, 1e-2, 1e3]) * draw(st.sampled_from([1e-2, 1.0, 1e4]))
    return rng.normal(means, scales, (rows, NUMBERS)).astype(np.float32).astype(np.float64)


@st.composite
def splits(draw: st.DrawFn) -> tuple[Rows, list[Rows]]:
    """Rows, and the same rows cut anywhere, in any order of pieces."""
    rows = draw(tables())
    cuts = sorted(draw(st.sets(st.integers(1, len(rows) - 1), max_size=8)))
    pieces = [piece for piece in np.split(rows, cuts) if len(piece)]
    return rows, draw(st.permutations(pieces))


def of(pieces: Sequence[Rows]) -> list[ObservationStatistics]:
    return [ObservationStatistics.of(piece) for piece in pieces]


def assert_those_of(seen: ObservationStatistics, rows: Rows) -> None:
    assert seen.count == len(rows)
    magnitude, variance = np.abs(rows).max(0), rows.var(0)
    np.testing.assert_array_less(np.abs(seen.mean - rows.mean(0)), 1e-9 * magnitude + 1e-300)
    # A mean is known to so many bits: beyond 1e5 deviations from 0 it limits the variance, too
    # (Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance", table 1).
    rounding = 16 * np.finfo(np.float64).eps * magnitude * np.sqrt(variance)
    apart = np.abs(seen.squares / seen.count - variance)
    np.testing.assert_array_less(apart, 1e-9 * variance + rounding + 1e-300)


@given(splits())
def test_any_split_in_any_order_gives_the_mean_and_variance_of_all(
    split: tuple[Rows, list[Rows]],
) -> None:
    rows, pieces = split
    assert_those_of(merged(of(pieces)), rows)


@given(splits())
def test_one_after_another_is_the_same_as_all_at_once(split: tuple[Rows, list[Rows]]) -> None:
    rows, pieces = split
    held = ObservationStatistics.of(pieces[0])
    for piece in pieces[1:]:
        held = merged([held, ObservationStatistics.of(piece)])
    assert_those_of(held, rows)


@given(tables())
def test_statistics_come_as_they_went(rows: Rows) -> None:
    seen = ObservationStatistics.of(rows)
    come = ObservationStatistics.from_pb(seen.to_pb(), numbers=NUMBERS)
    assert come.count == seen.count
    np.testing.assert_array_equal(come.mean, seen.mean)
    np.testing.assert_array_equal(come.squares, seen.squares)


def test_numbers_are_those_of_boxes_in_order_but_for_pixels_and_booleans() -> None:
    layout = ObservationLayout.of(rover_spec().observation)
    plain = ObservationLayout.of(cartpole_spec().observation)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(numbers_of(rows, plain), rows)
    leaves = {
        field.path: np.full((2, *field.shape), place, field.dtype)
        for place, field in enumerate(layout.fields)
    }
    numbers = numbers_of(layout.pack(leaves), layout)
    wanted = [
        place
        for place, field in enumerate(layout.fields)
        if field.dtype.kind == "f"
        for _ in range(int(np.prod(field.shape)))
    ]
    assert numbers.shape == (2, count_numbers(layout))
    assert numbers.shape[1] > 0
    np.testing.assert_array_equal(numbers[0], wanted)
    discrete = ObservationLayout.of(Discrete(3))
    assert numbers_of(np.zeros(5, np.int64), discrete).shape == (5, 0)


@given(st.data())
def test_of_every_space_there_are_as_many_numbers_as_are_counted(data: st.DataObject) -> None:
    space: Space = data.draw(spaces())
    layout = ObservationLayout.of(space)
    rows = numbers_of(data.draw(observations(space, (2, 3))), layout)
    assert rows.shape == (6, count_numbers(layout))
    assert rows.dtype == np.float64


def changed(**fields: object) -> pb.ObservationStatistics:
    rows = np.arange(12, dtype=np.float64).reshape(4, NUMBERS)
    message = ObservationStatistics.of(rows).to_pb()
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def three(*numbers: float) -> bytes:
    return np.array(numbers, "<f8").tobytes()


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("count", changed(count=0)),
        ("count", changed(count=MAX_COUNT + 1)),
        ("count", changed(count=(1 << 64) - 1)),
        ("shape", changed(mean=b"")),
        ("shape", changed(mean=bytes(8 * (NUMBERS + 1)))),
        ("shape", changed(squares=bytes(8 * NUMBERS - 1))),
        ("non_finite", changed(mean=three(0, float("nan"), 0))),
        ("non_finite", changed(squares=three(0, 0, float("inf")))),
        ("negative", changed(squares=three(0, -1e-9, 0))),
        ("range", changed(mean=three(0, -1e19, 0))),
        ("range", changed(squares=three(0, 0, 1e300))),
    ],
)
def test_what_no_observations_have_is_refused_by_its_reason(
    reason: str, message: pb.ObservationStatistics
) -> None:
    with pytest.raises(StatisticsRefused) as refused:
        ObservationStatistics.from_pb(message, numbers=NUMBERS)
    assert refused.value.reason == reason


def test_the_largest_numbers_that_are_told_of_stay_finite_when_all_are_merged() -> None:
    low = ObservationStatistics.of(np.full((2, NUMBERS), -MAX_MAGNITUDE))
    many = ObservationStatistics(MAX_COUNT, -low.mean, np.full(NUMBERS, 4e48))
    both = merged([low, ObservationStatistics.from_pb(many.to_pb(), numbers=NUMBERS)])
    assert np.isfinite(both.mean).all()
    assert np.isfinite(both.squares).all()
