"""Gradients and weights on the wire: what a codec loses is kept, and nothing hostile gets in."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from shoal.errors import LimitExceeded, UpdateRefused, WireError
from shoal.gradients import (
    BLOCK,
    CODECS,
    MAX_PARAMETERS,
    MAX_SETUP_BYTES,
    Codec,
    Encoder,
    Weights,
    decode_gradient,
    decode_weights,
    encode_weights,
)
from shoal.v1 import update_pb2 as pb

SIZES = st.integers(1, 3 * BLOCK + 5)
NUMBERS = st.floats(-1e6, 1e6, width=32)
GRADIENTS = SIZES.flatmap(lambda size: npst.arrays(np.float32, size, elements=NUMBERS))
LOSSY: list[Codec] = ["int8", "top_k"]


@given(GRADIENTS)
def test_float32_is_the_identity(gradient: NDArray[np.float32]) -> None:
    encoder = Encoder("float32")
    decoded = decode_gradient(encoder.code, len(gradient), encoder.encode(gradient))
    assert decoded.values.tobytes() == gradient.tobytes()
    assert decoded.norm == pytest.approx(float(np.linalg.norm(gradient.astype(np.float64))), 1e-4)
    assert encoder.lost is None


@given(GRADIENTS)
def test_int8_strays_by_half_a_step_of_its_block_at_most(gradient: NDArray[np.float32]) -> None:
    encoder = Encoder("int8")
    body = encoder.encode(gradient)
    assert len(body) == len(gradient) + 4 * math.ceil(len(gradient) / BLOCK)
    decoded = decode_gradient(encoder.code, len(gradient), body).values
    for start in range(0, len(gradient), BLOCK):
        block = slice(start, start + BLOCK)
        step = np.abs(gradient[block]).max() / 127
        assert np.abs(decoded[block] - gradient[block]).max() <= 0.5001 * step + 1e-37


@given(GRADIENTS, st.floats(0.001, 1.0))
def test_top_k_sends_the_largest_as_they_are(gradient: NDArray[np.float32], share: float) -> None:
    encoder = Encoder("top_k", share=share)
    body = encoder.encode(gradient)
    kept = math.ceil(share * len(gradient))
    assert len(body) == 4 + 8 * kept
    decoded = decode_gradient(encoder.code, len(gradient), body).values
    sent = decoded != 0
    np.testing.assert_array_equal(decoded[sent], gradient[sent])
    largest = np.sort(np.abs(gradient))[::-1]
    np.testing.assert_array_equal(np.sort(np.abs(decoded))[::-1][:kept], largest[:kept])


@given(
    st.sampled_from(LOSSY),
    SIZES.flatmap(
        lambda size: st.lists(
            npst.arrays(np.float32, size, elements=st.floats(-8, 8, width=32)),
            min_size=1,
            max_size=6,
        )
    ),
)
def test_what_is_lost_is_made_up_for(codec: Codec, gradients: list[NDArray[np.float32]]) -> None:
    """What came and what is kept are together what was given, however many there were."""
    encoder = Encoder(codec, share=0.1)
    came = np.zeros(len(gradients[0]))
    for gradient in gradients:
        body = encoder.encode(gradient)
        came += decode_gradient(encoder.code, len(gradient), body).values
    assert encoder.lost is not None
    np.testing.assert_allclose(came + encoder.lost, np.sum(gradients, axis=0), atol=1e-4)
    encoder.forget()
    assert encoder.lost is None


@pytest.mark.parametrize("codec", list(CODECS))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_not_sent_and_what_was_lost_stays(
    codec: Codec, value: float
) -> None:
    encoder = Encoder(codec)
    encoder.encode(np.linspace(-1, 1, 300, dtype=np.float32))
    before = encoder.lost
    bad = np.zeros(300, np.float32)
    bad[7] = value
    with pytest.raises(UpdateRefused) as caught:
        encoder.encode(bad)
    assert caught.value.reason == "non_finite"
    assert encoder.lost is before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_in_every_codec(value: float) -> None:
    floats = np.array([1.0, value], "<f4")
    bodies = {
        "float32": floats.tobytes(),
        "int8": floats[1:].tobytes() + bytes([1, 2]),
        "top_k": np.array([2, 0, 1], "<u4").tobytes() + floats.tobytes(),
    }
    for codec, code in CODECS.items():
        with pytest.raises(UpdateRefused) as caught:
            decode_gradient(code, 2, bodies[codec])
        assert caught.value.reason == "non_finite"


def test_a_norm_that_overflows_float32_is_still_told() -> None:
    huge = np.full(4, 3e38, np.float32)
    decoded = decode_gradient(CODECS["float32"], 4, huge.tobytes())
    assert decoded.norm == pytest.approx(6e38)


@given(st.sampled_from([*CODECS.values(), 0, 4, 99]), st.integers(-3, 600), st.binary(max_size=900))
def test_hostile_bytes_are_a_gradient_of_that_size_or_refused(
    codec: int, parameters: int, body: bytes
) -> None:
    try:
        decoded = decode_gradient(codec, parameters, body)
    except UpdateRefused as error:
        reason = error.reason
    else:
        reason = ""
        assert decoded.values.shape == (parameters,)
        assert np.isfinite(decoded.values).all()
        assert math.isfinite(decoded.norm)
    assert reason in ("", "malformed", "non_finite")


@given(st.sampled_from(list(CODECS)), GRADIENTS, st.integers(1, 16))
def test_a_body_that_was_cut_or_prolonged_is_refused(
    codec: Codec, gradient: NDArray[np.float32], by: int
) -> None:
    encoder = Encoder(codec, share=1.0)
    body = encoder.encode(gradient)
    with pytest.raises(UpdateRefused):
        decode_gradient(encoder.code, len(gradient), body[: max(0, len(body) - by)])
    with pytest.raises(UpdateRefused):
        decode_gradient(encoder.code, len(gradient), body + bytes(by))


@pytest.mark.parametrize("places", [[1, 1], [2, 1], [0, 3], [0, 2**32 - 1]])
def test_places_must_increase_and_be_parameters(places: list[int]) -> None:
    body = np.array([2, *places], "<u4").tobytes() + np.ones(2, "<f4").tobytes()
    with pytest.raises(UpdateRefused, match="places"):
        decode_gradient(CODECS["top_k"], 3, body)


def test_more_parameters_than_may_be_allocate_nothing() -> None:
    for code in CODECS.values():
        with pytest.raises(UpdateRefused, match="out of range"):
            decode_gradient(code, MAX_PARAMETERS + 1, bytes(8))


def weights(values: NDArray[np.float32]) -> Weights:
    setup = {"algorithm": "a:B", "settings": {"clip": math.inf}, "network": {"hidden": [64, 64]}}
    return Weights(bytes(range(32)), 12, values, setup)


@given(GRADIENTS)
def test_weights_come_as_they_went(values: NDArray[np.float32]) -> None:
    given_ = weights(values)
    decoded = decode_weights(encode_weights(given_))
    assert decoded.values.tobytes() == values.tobytes()
    assert (decoded.layout_digest, decoded.updates) == (given_.layout_digest, 12)
    assert decoded.setup == given_.setup


def test_weights_that_make_no_sense_are_refused() -> None:
    good = pb.Weights.FromString(encode_weights(weights(np.ones(3, np.float32))))
    for change, message in (
        ({"layout_digest": b"short"}, "32 bytes"),
        ({"values": b""}, "whole number"),
        ({"values": bytes(7)}, "whole number"),
        ({"values": np.array([np.nan], "<f4").tobytes()}, "not finite"),
        ({"setup": b"{"}, "not JSON"),
        ({"setup": b"[1]"}, "not a JSON object"),
        ({"setup": b"[" * 50_000}, "not JSON"),
        ({"setup": json.dumps({"a": "b" * MAX_SETUP_BYTES}).encode()}, "too long"),
    ):
        bad = pb.Weights()
        bad.CopyFrom(good)
        for name, value in change.items():
            setattr(bad, name, value)
        with pytest.raises((WireError, LimitExceeded), match=message):
            decode_weights(bad.SerializeToString())


@given(st.binary(max_size=400))
def test_hostile_bytes_are_weights_or_refused(data: bytes) -> None:
    try:
        decoded = decode_weights(data)
    except WireError:
        return
    assert np.isfinite(decoded.values).all()
