"""`Ranges` against Python's own sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import LimitExceeded, WireError
from shoal.ranges import MAX_SPANS, Ranges
from shoal.v1 import tensor_pb2 as pb

SETS = st.frozensets(st.integers(0, 40))
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def assert_canonical(ranges: Ranges) -> None:
    assert all(start < stop for start, stop in ranges.spans)
    edges = [edge for span in ranges.spans for edge in span]
    assert edges == sorted(set(edges)), "sorted, disjoint, and never two spans where one would do"


@given(SETS)
def test_holds_exactly_its_members(members: frozenset[int]) -> None:
    ranges = Ranges.of(members)
    assert_canonical(ranges)
    assert set(ranges) == members
    assert list(ranges) == sorted(members)
    assert ranges.count() == len(members)
    assert bool(ranges) == bool(members)
    assert all(ranges.contains(number) == (number in members) for number in range(-1, 45))


@given(SPANS)
def test_spans_in_any_order_make_their_union(spans: list[tuple[int, int]]) -> None:
    ranges = Ranges.from_spans(spans)
    assert_canonical(ranges)
    assert set(ranges) == {number for start, stop in spans for number in range(start, stop)}


@given(SETS, SETS)
def test_combines_as_sets_do(left: frozenset[int], right: frozenset[int]) -> None:
    first, second = Ranges.of(left), Ranges.of(right)
    for got, wanted in (
        (first.union(second), left | right),
        (first.intersection(second), left & right),
        (first.difference(second), left - right),
    ):
        assert_canonical(got)
        assert set(got) == wanted
        assert got == Ranges.of(wanted), "equal sets are equal values"


@given(SETS, st.integers(0, 45))
def test_adds_one_member(members: frozenset[int], member: int) -> None:
    assert Ranges.of(members).add(member) == Ranges.of(members | {member})


@given(SETS)
def test_prefix_is_the_first_number_missing(members: frozenset[int]) -> None:
    assert Ranges.of(members).prefix() == next(n for n in range(100) if n not in members)


@given(st.integers(0, 50))
def test_upto_is_everything_below(stop: int) -> None:
    assert set(Ranges.upto(stop)) == set(range(stop))


@given(SETS)
def test_round_trips_as_messages(members: frozenset[int]) -> None:
    ranges = Ranges.of(members)
    assert Ranges.from_pb(ranges.to_pb()) == ranges


def test_holds_huge_numbers_in_one_span() -> None:
    ranges = Ranges.from_spans([(0, 2**62), (2**62, 2**63)])
    assert ranges.spans == ((0, 2**63),)
    assert ranges.contains(2**63 - 1)
    assert not ranges.contains(2**63)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_refuses_an_empty_or_backward_span(start: int, stop: int) -> None:
    low, high = min(start, stop), max(start, stop)
    with pytest.raises(WireError, match="backwards"):
        Ranges.from_pb([pb.Span(start=high, stop=low)])


def test_refuses_more_spans_than_the_limit() -> None:
    spans = [pb.Span(start=2 * n, stop=2 * n + 1) for n in range(MAX_SPANS + 1)]
    assert len(Ranges.from_pb(spans[:-1]).spans) == MAX_SPANS
    with pytest.raises(LimitExceeded):
        Ranges.from_pb(spans)
