"""The policy's normalizer where observations stay on devices: made of what these tell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import numpy as np

from cloud_learner.gradients.run_statistics import RunStatistics
from cloud_learner.journal.audit import RunKey
from cloud_learner.models.normalizer import Normalizer
from shoal.acting_normalizer import ActingNormalizer
from shoal.observation_statistics import ObservationStatistics
from shoal.v1 import statistics_pb2 as pb

KEPT_VERSIONS: Final = 64
"""Whose normalizers are known: for a chunk of an older one, gradients are of the newest's."""


class FleetNormalizer:
    """Follows the fleet's statistics between two versions, and remembers that of each version.

    fleet_normalizer = FleetNormalizer(policy.normalizer)
    fleet_normalizer.note(run, seq, request.statistics)   # by the service
    fleet_normalizer.follow()                             # by the step before a version is made
    fleet_normalizer.note_published(version)
    fleet_normalizer.acting(version)                      # for a device that acted with it
    """

    def __init__(self, normalizer: Normalizer) -> None:
        """Takes over a normalizer, with what it has seen.

        Args:
            normalizer: The policy's, which only this changes from now on.
        """
        self._normalizer = normalizer
        self._numbers = normalizer.numbers
        self._runs = RunStatistics(self._numbers, begins=normalizer.statistics)
        self._first = normalizer.acting(0)
        self._versions: OrderedDict[int, ActingNormalizer] = OrderedDict()

    def note(self, run: RunKey, seq: int, message: pb.ObservationStatistics) -> None:
        """Takes in what a run told of its observations.

        Raises:
            StatisticsRefused: It cannot be, or the run told of more before.
        """
        told = ObservationStatistics.from_pb(message, numbers=self._numbers)
        self._runs.note(run, seq, told)

    @property
    def seen(self) -> ObservationStatistics | None:
        """What all runs told together; None while nothing was told."""
        return self._runs.merged()

    def follow(self) -> None:
        """Has the policy's normalizer be what the fleet has seen, for the next version."""
        if (seen := self.seen) is not None:
            self._normalizer.follow(seen)

    def note_published(self, version: int) -> None:
        """Notes that the normalizer, as it is, went into a version.

        Not while it has seen nothing: what such a version saw is best seen with the next one's
        (decision 0042).
        """
        if not self._normalizer.count:
            return
        self._versions[version] = self._normalizer.acting(version)
        if len(self._versions) > KEPT_VERSIONS:
            self._versions.popitem(last=False)

    def acting(self, version: int) -> ActingNormalizer:
        """That of a version; of the newest where it is not known, or had seen nothing."""
        found = self._versions.get(version)
        if found is None:
            found = next(reversed(self._versions.values()), self._first)
        return found

    def state_dict(self) -> dict[str, object]:
        """What devices told, and the normalizers of versions."""
        shape = (len(self._versions), self._numbers)
        acting = list(self._versions.values())
        return {
            "told": self._runs.state_dict(),
            "versions": np.array([each.version for each in acting], np.int64),
            "shifts": np.array([each.shift for each in acting], np.float32).reshape(shape),
            "gains": np.array([each.gain for each in acting], np.float32).reshape(shape),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from a checkpoint, bit for bit.

        Raises:
            CheckpointError: It is of observations of other numbers.
        """
        told = state["told"]
        assert isinstance(told, Mapping)  # noqa: S101 - as it was saved
        self._runs.load_state_dict(told)
        versions, shifts, gains = (
            np.asarray(state[name]) for name in ("versions", "shifts", "gains")
        )
        self._versions = OrderedDict(
            (int(version), ActingNormalizer(int(version), shift.copy(), gain.copy()))
            for version, shift, gain in zip(versions, shifts, gains, strict=True)
        )
