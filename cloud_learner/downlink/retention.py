"""Which of the older policy versions stay, so that a rollout can go a long way back."""

from __future__ import annotations

from collections.abc import Iterable


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
