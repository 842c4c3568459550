from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.training.roster import FixedRoster, PresentRoster

NAMES = st.sets(st.sampled_from([f"pi-{n}" for n in range(6)]))


def test_a_fixed_number_is_waited_for_whoever_they_are() -> None:
    roster = FixedRoster(2)
    assert roster.batch(1, {"pi-9"}) == ()
    assert roster.batch(1, {"pi-9", "pi-3", "pi-5"}) == ["pi-3", "pi-5"]
    assert roster.expected(1) == 2


def test_who_comes_is_waited_for_from_the_next_version_on_but_counts_at_once() -> None:
    present = {"pi-1"}
    roster = PresentRoster(lambda: present)
    assert roster.expected(1) == 1
    present = {"pi-1", "pi-2"}
    assert roster.missing(1, ()) == ["pi-1"]
    assert roster.batch(1, {"pi-1"}) == ["pi-1"]
    assert roster.batch(1, {"pi-1", "pi-2"}) == ["pi-1", "pi-2"]
    assert roster.missing(2, {"pi-1"}) == ["pi-2"]
    assert roster.batch(2, {"pi-1"}) == ()


def test_who_is_lost_is_waited_for_no_longer_and_what_it_made_still_counts() -> None:
    present = {"pi-1", "pi-2", "pi-3"}
    roster = PresentRoster(lambda: present)
    assert roster.batch(1, {"pi-1", "pi-3"}) == ()
    present = {"pi-1"}
    assert roster.batch(1, {"pi-1", "pi-3"}) == ["pi-1", "pi-3"]


def test_when_all_are_gone_those_who_come_make_the_batch() -> None:
    present = {"pi-1"}
    roster = PresentRoster(lambda: present)
    assert roster.expected(1) == 1
    present = set()
    assert roster.batch(1, ()) == ()
    present = {"pi-2"}
    assert roster.missing(1, ()) == ["pi-2"]
    assert roster.batch(1, {"pi-2"}) == ["pi-2"]


@given(st.lists(st.tuples(st.integers(1, 4), NAMES, NAMES), min_size=1, max_size=20))
def test_a_batch_never_waits_for_anybody_who_is_not_there(
    moments: list[tuple[int, set[str], set[str]]],
) -> None:
    present: set[str] = set()
    roster = PresentRoster(lambda: present)
    for version, there, full in sorted(moments, key=lambda moment: moment[0]):
        present = there
        missing, batch = roster.missing(version, full), roster.batch(version, full)
        assert set(missing) <= there - full
        assert bool(batch) == (not missing and bool(there) and bool(full))
        assert not batch or batch == sorted(full)
        if there and there <= full:
            assert batch
