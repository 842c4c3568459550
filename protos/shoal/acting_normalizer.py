"""What a policy version does to the numbers that it observes, apart from the version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import WireError
from shoal.observation_statistics import MAX_NUMBERS
from shoal.v1 import statistics_pb2 as pb

_FLOAT: Final = np.dtype("<f4")


@dataclass(frozen=True, slots=True, eq=False)
class ActingNormalizer:
    """(x - shift) * gain, of the E numbers of an observation.

    Attributes:
        version: Of the policy whose it is; 0 where none is published yet.
        shift: `[E]` float32.
        gain: `[E]` float32, over 0.
    """

    version: int
    shift: NDArray[np.float32]
    gain: NDArray[np.float32]

    def to_pb(self) -> pb.ActingNormalizer:
        """As a message."""
        return pb.ActingNormalizer(
            policy_version=self.version,
            shift=self.shift.astype(_FLOAT, copy=False).tobytes(),
            gain=self.gain.astype(_FLOAT, copy=False).tobytes(),
        )

    @classmethod
    def from_pb(cls, message: pb.ActingNormalizer) -> Self:
        """Reads a message.

        Raises:
            WireError: Its numbers cannot be.
        """
        size = len(message.shift)
        if size != len(message.gain) or size % _FLOAT.itemsize or not size:
            raise WireError("normalizer: shift and gain must be equally many float32")
        if size > _FLOAT.itemsize * MAX_NUMBERS:
            raise WireError(f"normalizer: of more than {MAX_NUMBERS} numbers")
        shift, gain = (np.frombuffer(data, _FLOAT) for data in (message.shift, message.gain))
        if not (np.isfinite(shift).all() and np.isfinite(gain).all() and (gain > 0.0).all()):
            raise WireError("normalizer: a number is not finite, or a gain not over 0")
        return cls(message.policy_version, shift, gain)
