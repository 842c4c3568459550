"""Whose chunks make a batch, where devices and learner wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol


class Roster(Protocol):
    """Says when a batch is whole."""

    def expected(self, version: int) -> int:
        """How many devices the batch of a policy version waits for."""

    def missing(self, version: int, full: Collection[str]) -> Sequence[str]:
        """Those it still waits for, by name, as far as the names are known."""

    def batch(self, version: int, full: Collection[str]) -> Sequence[str]:
        """Whose chunks are the batch, in order; nobody's while one is missing.

        Args:
            version: The newest.
            full: The devices that have made all their chunks under it.
        """


class FixedRoster:
    """So many devices, whichever they are: what a repeatable run needs.

    roster = FixedRoster(4)
    roster.batch(version, ["pi-2", "pi-1"])     # () until four have made theirs
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices

    def expected(self, version: int) -> int:  # noqa: ARG002 - always as many
        """How many devices take part."""
        return self._devices

    def missing(self, version: int, full: Collection[str]) -> Sequence[str]:  # noqa: ARG002
        """Nobody is known by name."""
        return ()

    def batch(self, version: int, full: Collection[str]) -> Sequence[str]:  # noqa: ARG002
        """The first by name, once there are enough."""
        return sorted(full)[: self._devices] if len(full) >= self._devices else ()


class PresentRoster:
    """All devices that are present: they may come and go at any time.

    Who was present when a version came out is waited for, as long as it stays; who comes later
    takes part from the next version on, but what it has made already counts. When all of them are
    gone, those who are present then are waited for.

    roster = PresentRoster(fleet.present)
    """

    def __init__(self, present: Callable[[], Collection[str]]) -> None:
        """Knows nobody yet.

        Args:
            present: The devices that act now.
        """
        self._present = present
        self._version = 0
        self._members: frozenset[str] = frozenset()

    def expected(self, version: int) -> int:
        """How many of the members are still there."""
        return len(self._staying(version))

    def missing(self, version: int, full: Collection[str]) -> Sequence[str]:
        """The members that are still there and have not made their chunks."""
        return sorted(self._staying(version).difference(full))

    def batch(self, version: int, full: Collection[str]) -> Sequence[str]:
        """All who have made their chunks, once every member that stays has."""
        staying = self._staying(version)
        return sorted(full) if staying and staying.issubset(full) else ()

    def _staying(self, version: int) -> frozenset[str]:
        present = frozenset(self._present())
        if version != self._version or not self._members & present:
            self._version, self._members = version, present
        return self._members & present
