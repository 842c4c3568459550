"""Gradients and weights on the wire: how a flat vector of float32 becomes bytes, and back.

A gradient is `[P]` float32, one number for each parameter in the order of the layout. What is
lost on the way is kept by the sender and added to its next one: error feedback (Seide et al. 2014,
"1-bit stochastic gradient descent"; Karimireddy et al. 2019, "Error feedback fixes SignSGD").
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.acting_normalizer import ActingNormalizer
from shoal.errors import LimitExceeded, UpdateRefused, WireError
from shoal.v1 import update_pb2 as pb
from shoal.wire import parse

Floats = NDArray[np.float32]
Codec = Literal["float32", "int8", "top_k"]
CODECS: Final[Mapping[Codec, pb.GradientCodec]] = {
    "float32": pb.GRADIENT_CODEC_FLOAT32,
    "int8": pb.GRADIENT_CODEC_INT8,
    "top_k": pb.GRADIENT_CODEC_TOP_K,
}
BLOCK: Final = 256
"""Parameters that share a scale in int8: 1.6 % more bytes than one scale for all."""
MAX_PARAMETERS: Final = 32 * 1024 * 1024
MAX_WEIGHTS_BYTES: Final = 4 * MAX_PARAMETERS + 256 * 1024
MAX_SETUP_BYTES: Final = 64 * 1024
DIGEST_BYTES: Final = 32
_LEVELS: Final = 127
_FLOAT: Final = np.dtype("<f4")
_PLACE: Final = np.dtype("<u4")


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """What was decoded.

    Attributes:
        values: `[P]` float32, read-only where it shares the message's bytes; all finite.
        norm: Its Euclidean norm.
    """

    values: Floats
    norm: float


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """What a device computed from one chunk.

    Attributes:
        values: `[P]` float32, the gradient of the loss.
        metrics: Scalars by name.
    """

    values: Floats
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """What gradients are computed at.

    Attributes:
        layout_digest: 32 bytes, of names, shapes and order of the parameters.
        updates: Optimiser updates so far.
        values: `[P]` float32, all finite.
        setup: Algorithm, settings and network, as JSON has them.
        normalizer: Of the version that acted; None where the network has none.
    """

    layout_digest: bytes
    updates: int
    values: Floats
    setup: Mapping[str, object]
    normalizer: ActingNormalizer | None = None


class Encoder:
    """Turns gradients into bodies; keeps what a codec loses, for the next one.

    encoder = Encoder("int8")
    body = encoder.encode(gradient)     # decode_gradient(encoder.code, len(gradient), body)

    Attributes:
        code: The codec's number on the wire.
    """

    def __init__(self, codec: Codec, *, share: float = 0.01) -> None:
        """Has lost nothing yet.

        Args:
            codec: How.
            share: Of `top_k`, the part of the parameters that travels, 0 to 1: at least one does.
        """
        self.code = CODECS[codec]
        self._codec = codec
        self._share = share
        self._lost: Floats | None = None

    @property
    def lost(self) -> Floats | None:
        """`[P]`, what the next gradient is to make up for; None where nothing is."""
        return self._lost

    def forget(self) -> None:
        """Loses what it keeps: the parameters are others now."""
        self._lost = None

    def encode(self, gradient: Floats) -> bytes:
        """The body of a gradient `[P]`, together with what was lost before.

        Raises:
            UpdateRefused: A number is not finite (reason `non_finite`); what was lost is kept.
        """
        if self._codec == "float32":
            return _require_finite(gradient).astype(_FLOAT, copy=False).tobytes()
        whole = gradient if self._lost is None else gradient + self._lost
        _require_finite(whole)
        body = _to_int8(whole) if self._codec == "int8" else _to_top_k(whole, self._share)
        decoded = decode_gradient(self.code, len(whole), body)
        self._lost = whole - decoded.values
        return body


def decode_gradient(codec: int, parameters: int, body: bytes) -> Gradient:
    """Reads a body.

    Args:
        codec: Its number on the wire.
        parameters: P, which the caller holds against its own layout first.
        body: The bytes.

    Raises:
        UpdateRefused: The bytes are not P parameters in that codec (`malformed`), or a number is
            not finite (`non_finite`). Nothing larger than P was allocated.
    """
    if not 0 < parameters <= MAX_PARAMETERS:
        raise UpdateRefused("malformed", f"gradient: {parameters} parameters are out of range")
    if codec == pb.GRADIENT_CODEC_FLOAT32:
        _require_bytes(body, 4 * parameters)
        values = np.frombuffer(body, _FLOAT)
        return Gradient(values, _norm(values))
    if codec == pb.GRADIENT_CODEC_INT8:
        values = _from_int8(body, parameters)
        return Gradient(values, _norm(values))
    if codec == pb.GRADIENT_CODEC_TOP_K:
        return _from_top_k(body, parameters)
    raise UpdateRefused("malformed", f"gradient: unknown codec {codec}; update this program")


def encode_weights(weights: Weights) -> bytes:
    """Serializes weights: the payload of `GetWeights`."""
    message = pb.Weights(
        layout_digest=weights.layout_digest,
        updates=weights.updates,
        values=weights.values.astype(_FLOAT, copy=False).tobytes(),
        setup=json.dumps(weights.setup, sort_keys=True).encode(),
        normalizer=None if weights.normalizer is None else weights.normalizer.to_pb(),
    )
    payload: bytes = message.SerializeToString(deterministic=True)
    return payload


def decode_weights(data: bytes) -> Weights:
    """Reads what `encode_weights` wrote.

    Raises:
        LimitExceeded: It is larger than what may come.
        WireError: It is malformed, or a weight is not finite.
    """
    if len(data) > MAX_WEIGHTS_BYTES:
        raise LimitExceeded(f"weights: {len(data)} bytes, the limit is {MAX_WEIGHTS_BYTES}")
    message = parse(pb.Weights, data)
    if len(message.layout_digest) != DIGEST_BYTES:
        raise WireError(f"weights: the layout's digest must be {DIGEST_BYTES} bytes")
    if not message.values or len(message.values) % _FLOAT.itemsize:
        raise WireError(f"weights: {len(message.values)} bytes are no whole number of float32")
    if len(message.setup) > MAX_SETUP_BYTES:
        raise LimitExceeded(f"weights: a setup of {len(message.setup)} bytes is too long")
    values = np.frombuffer(message.values, _FLOAT)
    if not np.isfinite(values).all():
        raise WireError("weights: some are not finite; the learner's training has gone wrong")
    try:
        setup = json.loads(message.setup)
    except (ValueError, RecursionError) as error:
        raise WireError(f"weights: the setup is not JSON ({error})") from error
    if not isinstance(setup, dict):
        raise WireError("weights: the setup is not a JSON object")
    told = message.HasField("normalizer")
    normalizer = ActingNormalizer.from_pb(message.normalizer) if told else None
    return Weights(message.layout_digest, message.updates, values, setup, normalizer)


def _to_int8(values: Floats) -> bytes:
    blocks = _blocks(len(values))
    padded = np.zeros(blocks * BLOCK, np.float32)
    padded[: len(values)] = values
    table = padded.reshape(blocks, BLOCK)
    scales = np.abs(table).max(1) / np.float32(_LEVELS)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.where(scales[:, None] > 0, table / scales[:, None], 0.0)
    integers = np.clip(np.rint(steps), -_LEVELS, _LEVELS).astype(np.int8)
    body: bytes = scales.astype(_FLOAT).tobytes() + integers.reshape(-1)[: len(values)].tobytes()
    return body


def _from_int8(body: bytes, parameters: int) -> Floats:
    blocks = _blocks(parameters)
    _require_bytes(body, _FLOAT.itemsize * blocks + parameters)
    scales = np.frombuffer(body, _FLOAT, blocks)
    integers = np.frombuffer(body, np.int8, parameters, _FLOAT.itemsize * blocks)
    whole = parameters // BLOCK * BLOCK
    values = np.empty(parameters, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # the norm tells
        np.multiply(
            integers[:whole].reshape(-1, BLOCK),
            scales[: whole // BLOCK, None],
            out=values[:whole].reshape(-1, BLOCK),
        )
        if whole < parameters:
            np.multiply(integers[whole:], scales[-1], out=values[whole:])
    return values


def _to_top_k(values: Floats, share: float) -> bytes:
    count = min(len(values), max(1, math.ceil(share * len(values))))
    places = np.sort(np.argpartition(np.abs(values), len(values) - count)[-count:])
    head = np.array([count, *places], _PLACE)
    return head.tobytes() + values[places].astype(_FLOAT).tobytes()


def _from_top_k(body: bytes, parameters: int) -> Gradient:
    item = _PLACE.itemsize
    count = int.from_bytes(body[:item], "little")
    if not 0 < count <= parameters:
        raise UpdateRefused("malformed", f"gradient: {count} places of {parameters} parameters")
    _require_bytes(body, item + count * (item + _FLOAT.itemsize))
    places = np.frombuffer(body, _PLACE, count, item)
    kept = np.frombuffer(body, _FLOAT, count, item + item * count)
    if int(places[-1]) >= parameters or bool((places[1:] <= places[:-1]).any()):
        raise UpdateRefused("malformed", "gradient: places must increase and be parameters")
    norm = _norm(kept)
    values = np.zeros(parameters, np.float32)
    values[places] = kept
    return Gradient(values, norm)


def _norm(values: Floats) -> float:
    """The norm, in one pass where it does not overflow.

    Raises:
        UpdateRefused: A number is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(values, values))
    if not math.isfinite(square):
        wide = _require_finite(values).astype(np.float64)
        square = float(np.dot(wide, wide))
    return math.sqrt(square)


def _require_finite(values: Floats) -> Floats:
    if not np.isfinite(values).all():
        raise UpdateRefused("non_finite", "gradient: a number is not finite")
    return values


def _require_bytes(body: bytes, wanted: int) -> None:
    if len(body) != wanted:
        raise UpdateRefused("malformed", f"gradient: {len(body)} bytes, it must be {wanted}")


def _blocks(parameters: int) -> int:
    return -(-parameters // BLOCK)
