"""Devices that hold versions this log never published: the next version is put above theirs.

A device accepts only versions above its own. After a lost `state_dir` the learner would count from
1 again, and the fleet would never follow. Policies are signed by the same key, so going on above
the highest version that enrolled devices report is safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

MAX_JUMP: Final = 1_000_000
"""How far above its own highest a device may make the learner go, so that none can use them up."""
MAX_VERSION_BELIEVED: Final = 1 << 40
JUMP_INTERVAL_S: Final = 10.0


class VersionJumps:
    """Collects the versions that devices hold and says when, and over what, to jump.

    jumps = VersionJumps(highest=lambda: policy_log.highest_version, wake=replay.wake)
    problem = jumps.note(1437)        # "" when it is not above ours
    if jumps.due: policy_log.skip_to(jumps.take())
    """

    def __init__(
        self,
        *,
        highest: Callable[[], int],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts with nothing to jump over.

        Args:
            highest: The highest version given out here.
            wake: Called when a jump is due.
            clock: Monotonic seconds.
        """
        self._highest = highest
        self._wake = wake
        self._clock = clock
        self._target = 0
        self._jumped_s: float | None = None

    def note(self, version: int) -> str:
        """Notes what a device holds; one line for a person when it is above our highest."""
        highest = self._highest()
        if version <= highest:
            return ""
        told = (
            f"it holds policy version {version} and the highest of this learner is {highest}: was "
            "the learner's state_dir lost or replaced? "
        )
        if version >= MAX_VERSION_BELIEVED or version - highest > MAX_JUMP:
            return told + (
                "That is too far above to be believed: if it is true, restart the learner with "
                f"policies_after_version = {version}"
            )
        self._target = max(self._target, version)
        if self.due:
            self._wake()
        return told + "The next version will be above it"

    @property
    def due(self) -> bool:
        """Whether to jump now; once per `JUMP_INTERVAL_S` at most."""
        rested = self._jumped_s is None or self._clock() - self._jumped_s >= JUMP_INTERVAL_S
        return rested and self._target > self._highest()

    def take(self) -> int:
        """The version that the next one must be above; the jump counts as done."""
        self._jumped_s = self._clock()
        return self._target
