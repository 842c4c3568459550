"""Nothing that is counted is lost, and nothing is said more often than it should be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shoalctl.events.tally import MAX_KINDS, Tally

STEPS = st.lists(st.one_of(st.sampled_from("abc"), st.floats(0.0, 8.0), st.just(None)), max_size=60)


@given(STEPS)
def test_all_that_came_is_told_in_the_end_and_no_kind_twice_within_an_interval(
    steps: list[str | float | None],
) -> None:
    now = [0.0]
    tally: Tally[str, int] = Tally(5.0, other="other", clock=lambda: now[0])
    came, told = Counter[str](), Counter[str]()
    last: dict[str, float] = {}
    for number, step in enumerate([*steps, 100.0, None]):
        if isinstance(step, str):
            came[step] += 1
            tally.add(step, number)
        elif isinstance(step, float):
            now[0] += step
        else:
            for kind, count, _ in tally.take_due():
                assert now[0] - last.get(kind, -5.0) >= 5.0
                last[kind] = now[0]
                told[kind] += count
    assert told == came
    assert tally.next_due_s() is None


@given(st.integers(1, 50))
def test_the_first_is_told_at_once_and_the_rest_together(more: int) -> None:
    now = [0.0]
    tally: Tally[str, int] = Tally(10.0, other="other", clock=lambda: now[0])
    tally.add("topic", 0)
    assert tally.take_due() == [("topic", 1, 0)]
    for number in range(more):
        tally.add("topic", number)
    assert tally.take_due() == []
    assert tally.next_due_s() == 10.0
    now[0] = 10.0
    assert tally.take_due() == [("topic", more, more - 1)]


def test_a_flood_of_new_kinds_becomes_one_and_forgotten_kinds_make_room() -> None:
    now = [0.0]
    tally: Tally[int, str] = Tally(10.0, other=-1, clock=lambda: now[0])
    for kind in range(1000):
        tally.add(kind, "x")
    told = {kind: count for kind, count, _ in tally.take_due()}
    assert len(told) == MAX_KINDS + 1
    assert told[-1] == 1000 - MAX_KINDS
    now[0] = 20.0
    assert tally.take_due() == []
    tally.add(5000, "y")
    assert tally.take_due() == [(5000, 1, "y")]
