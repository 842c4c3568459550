"""How far back policy versions are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.downlink.retention import landmarks

PER_DOUBLING = st.integers(1, 9)


@given(st.integers(1, 400), PER_DOUBLING)
def test_pruning_at_each_version_keeps_what_pruning_once_would(newest: int, each: int) -> None:
    kept: set[int] = set()
    for version in range(1, newest + 1):
        kept = landmarks(kept | {version}, newest=version, per_doubling=each)
    assert kept == landmarks(range(1, newest + 1), newest=newest, per_doubling=each)


@given(st.integers(64, 1 << 20), PER_DOUBLING)
def test_each_doubling_of_the_distance_has_as_many_as_are_asked_for_and_no_more_than_twice(
    newest: int, each: int
) -> None:
    kept = landmarks(range(1, newest + 1), newest=newest, per_doubling=each)
    octave = 16
    while 2 * octave < newest:
        there = [one for one in kept if octave <= newest - one < 2 * octave]
        assert each <= len(there) <= 2 * each
        octave *= 2
    assert newest in kept


def test_none_are_kept_when_none_are_asked_for() -> None:
    assert landmarks(range(1, 100), newest=99, per_doubling=0) == set()
