"""Which of the older policy versions stay, so that a rollout can go a long way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

MAX_RETAINED: Final = 2048
"""Versions beyond those that are asked for by number: each costs a learner's start half a
millisecond, as it is proven then."""


def newest_within(sizes: Mapping[int, int], *, keep: int, retain_bytes: int) -> set[int]:
    """The newest versions: so many at least, and more while all together have no more bytes.

    >>> newest_within({1: 10, 2: 10, 3: 10}, keep=1, retain_bytes=25)
    {2, 3}

    Args:
        sizes: Bytes of each version that is there.
        keep: How many stay whatever they have.
        retain_bytes: Of all that stay.
    """
    kept: set[int] = set()
    total = 0
    for version in sorted(sizes, reverse=True):
        total += sizes[version]
        beyond = len(kept) >= keep
        if beyond and (total > retain_bytes or len(kept) >= keep + MAX_RETAINED):
            break
        kept.add(version)
    return kept


def landmarks(versions: Iterable[int], *, newest: int, per_doubling: int) -> set[int]:
    """The versions to keep of those that are there, fewer the further back they are.

    Of the versions from 2^k to 2^(k+1) behind the newest stay those that are divisible by the
    largest power of two that leaves `per_doubling` or more of them. What stays at one distance is a
    subset of what stays nearer, so nothing is asked for that an earlier answer let go.

    >>> sorted(landmarks(range(1, 101), newest=100, per_doubling=2))[:6]
    [32, 48, 64, 72, 80, 88]

    Args:
        versions: Those that are there, each 1 or more.
        newest: The highest.
        per_doubling: How many stay for each doubling of the distance, up to twice as many; 0: none.
    """
    if per_doubling <= 0:
        return set()
    return {
        version for version in versions if version % _spacing(newest - version, per_doubling) == 0
    }


def _spacing(distance: int, per_doubling: int) -> int:
    octave = 1 << max(0, distance.bit_length() - 1)
    return 1 << max(0, (octave // per_doubling).bit_length() - 1)
