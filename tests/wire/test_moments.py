"""Moments and ranges of observations: what a learner gets in place of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from strategies import cartpole_spec, rover_spec

from shoal.errors import WireError
from shoal.layout import ObservationLayout
from shoal.moments import MAX_ELEMENTS, Moments
from shoal.spaces import Box, unbounded
from shoal.v1 import update_pb2 as pb

LAYOUT = ObservationLayout.of(cartpole_spec().observation)
ROWS = st.integers(1, 40).flatmap(
    lambda rows: npst.arrays(np.float32, (rows, 4), elements=st.floats(-100, 100, width=32))
)
WHOLE = 1 << 30


def of(rows: NDArray[np.float32]) -> Moments:
    moments = Moments.of(rows, LAYOUT)
    assert moments is not None
    return moments


@given(ROWS)
def test_moments_come_as_they_went(rows: NDArray[np.float32]) -> None:
    moments = of(rows)
    decoded = Moments.from_pb(moments.to_pb(), LAYOUT)
    assert decoded.count == len(rows)
    for name in ("mean", "variance", "low", "high"):
        np.testing.assert_array_equal(getattr(decoded, name), getattr(moments, name))


@given(ROWS, ROWS)
def test_two_that_do_not_fade_are_those_of_all(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> None:
    merged, whole = of(first).merged(of(second), most=WHOLE), of(np.concatenate([first, second]))
    assert merged.count == whole.count
    np.testing.assert_allclose(merged.mean, whole.mean, atol=1e-3)
    np.testing.assert_allclose(merged.variance, whole.variance, atol=1e-1, rtol=1e-3)


@given(ROWS, ROWS)
def test_a_wider_range_counts_at_once_and_a_narrower_one_by_its_part(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> None:
    before, newer = of(first), of(second)
    merged = before.merged(newer, most=len(first))
    slack = 1e-4
    assert (merged.low <= newer.low + slack).all()
    assert (merged.high >= newer.high - slack).all()
    assert (merged.low >= np.minimum(before.low, newer.low) - slack).all()
    assert (merged.high <= np.maximum(before.high, newer.high) + slack).all()


@given(ROWS, st.integers(0, 2**32))
def test_what_is_drawn_lies_in_the_range_and_reaches_its_ends(
    rows: NDArray[np.float32], seed: int
) -> None:
    moments = of(rows)
    drawn = moments.draw(64, LAYOUT, np.random.default_rng(seed))
    assert drawn.shape == (64, 4)
    assert drawn.dtype == np.float32
    assert (drawn >= moments.low).all()
    assert (drawn <= moments.high).all()
    reached = (drawn == moments.high).any(0)
    assert reached.all()


def test_whole_numbers_are_drawn_where_whole_numbers_are_observed() -> None:
    box = Box(np.full(3, -50, np.int32), np.full(3, 50, np.int32))
    layout = ObservationLayout.of(box)
    moments = Moments.of(np.array([[1, 2, 3], [4, -5, 6]], np.int32), layout)
    assert moments is not None
    assert moments.draw(16, layout, np.random.default_rng(0)).dtype == np.int32


def test_images_nested_spaces_and_what_is_not_finite_give_none() -> None:
    wide = ObservationLayout.of(unbounded((MAX_ELEMENTS + 1,)))
    assert Moments.of(np.zeros((2, MAX_ELEMENTS + 1), np.float32), wide) is None
    nested = ObservationLayout.of(rover_spec().observation)
    assert Moments.of(np.zeros((2, *nested.shape), np.uint8), nested) is None
    assert Moments.of(np.full((2, 4), np.nan, np.float32), LAYOUT) is None
    assert Moments.of(np.zeros((0, 4), np.float32), LAYOUT) is None


def test_moments_that_cannot_be_are_refused() -> None:
    good = of(np.arange(8, dtype=np.float32).reshape(2, 4)).to_pb()
    bad_number = np.array([0, 0, np.inf, 0], "<f4").tobytes()
    for change, message in (
        ({"count": 0}, "0 observations"),
        ({"count": 1 << 50}, "observations"),
        ({"mean": b""}, "mean must be 4"),
        ({"high": bytes(20)}, "high must be 4"),
        ({"variance": bad_number}, "not finite"),
        ({"variance": np.full(4, -1, "<f4").tobytes()}, "below 0"),
        ({"low": np.full(4, 99, "<f4").tobytes()}, "range"),
    ):
        bad = pb.ObservationMoments()
        bad.CopyFrom(good)
        for name, value in change.items():
            setattr(bad, name, value)
        with pytest.raises(WireError, match=message):
            Moments.from_pb(bad, LAYOUT)
