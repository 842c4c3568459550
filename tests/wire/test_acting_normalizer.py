"""What a version does to observations, on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from shoal.acting_normalizer import ActingNormalizer
from shoal.errors import WireError
from shoal.gradients import Weights, decode_weights, encode_weights
from shoal.observation_statistics import MAX_NUMBERS
from shoal.v1 import statistics_pb2 as pb

FLOATS = npst.arrays(np.float32, 3, elements=st.floats(2.0**-60, 2.0**60, width=32))


@given(st.integers(0, 2**63), FLOATS, FLOATS)
def test_a_normalizer_comes_with_the_weights_as_it_went(
    version: int, shift: NDArray[np.float32], gain: NDArray[np.float32]
) -> None:
    acting = ActingNormalizer(version, -shift, gain)
    weights = Weights(bytes(32), 7, np.ones(5, np.float32), {"algorithm": "a:B"}, acting)
    come = decode_weights(encode_weights(weights)).normalizer
    assert come is not None
    assert come.version == version
    np.testing.assert_array_equal(come.shift, acting.shift)
    np.testing.assert_array_equal(come.gain, acting.gain)


def test_weights_without_one_have_none() -> None:
    weights = Weights(bytes(32), 7, np.ones(5, np.float32), {"algorithm": "a:B"})
    assert decode_weights(encode_weights(weights)).normalizer is None


def floats(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


@pytest.mark.parametrize(
    ("shift", "gain", "message"),
    [
        (b"", b"", "equally many"),
        (floats(0), floats(1, 1), "equally many"),
        (b"abc", b"abc", "equally many"),
        (bytes(4 * (MAX_NUMBERS + 1)), bytes(4 * (MAX_NUMBERS + 1)), "more than"),
        (floats(np.inf), floats(1), "not finite"),
        (floats(0), floats(np.nan), "not finite"),
        (floats(0), floats(0), "not over 0"),
        (floats(0), floats(-1), "not over 0"),
    ],
)
def test_one_that_cannot_be_is_refused(shift: bytes, gain: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        ActingNormalizer.from_pb(pb.ActingNormalizer(policy_version=1, shift=shift, gain=gain))
