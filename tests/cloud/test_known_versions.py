from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.uplink.admission import KnownVersion, KnownVersions


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=5),
    st.integers(0, 100),
    st.integers(0, 2**32 - 1),
)
def test_a_version_that_was_published_again_does_not_move_the_oldest_that_is_within_a_bound(
    gains: list[int], again: list[tuple[int, int]], lowest: int, seed: int
) -> None:
    """It has the updates it had, fewer than those around it; in whatever order they are added."""
    updates: dict[int, int] = {}
    total = 0
    for number, gain in enumerate(gains):
        total += gain
        updates[10 * (number + 1)] = total
    plain = KnownVersions(lambda _: None, highest=0)
    for version, count in updates.items():
        plain.add(version, KnownVersion(count, None))
    copies = {
        10 * (after % len(gains) + 1) + 5: updates[10 * (source % len(gains) + 1)]
        for source, after in again
        if source % len(gains) < after % len(gains)
        and updates[10 * (source % len(gains) + 1)] < updates[10 * (after % len(gains) + 1)]
    }
    everything = [*updates.items(), *copies.items()]
    random.Random(seed).shuffle(everything)
    versions = KnownVersions(lambda _: None, highest=0)
    for version, count in everything:
        versions.add(version, KnownVersion(count, None))
    expected = plain.oldest_within(lowest)
    if expected == plain.highest and updates[expected] < lowest:
        expected = versions.highest  # nothing is: the newest stands for it
    assert versions.oldest_within(lowest) == expected
    for version, count in everything:
        known = versions.find(version)
        assert known is not None
        assert known.updates == count
