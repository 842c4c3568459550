"""Deltas of tensors: the identity for any tensors, and small where little changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from strategies import arrays, dtypes

from shoal.delta import decode_delta, encode_delta
from shoal.errors import LimitExceeded, WireError
from shoal.tensors import MAX_AXES, MAX_TENSOR_BYTES, Array, encode_tensors
from shoal.v1 import tensor_pb2 as pb
from shoal.wire import frame, unframe

Tensors = dict[str, Array]
LIMIT = 1 << 26
NAMES = st.text(max_size=4)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)


@st.composite
def tensors_of(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES) -> Tensors:
    return {
        name: draw(arrays(draw(SHAPES), draw(dtypes)))
        for name in draw(st.lists(names, unique=True, max_size=4))
    }


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensors, Tensors]:
    """A base, and what became of it: of each tensor all, a few elements, or nothing changed."""
    base = draw(tensors_of())
    target = draw(tensors_of())
    for name, array in base.items():
        match draw(st.sampled_from(["gone", "same", "few", "other"])):
            case "same":
                target[name] = array
            case "other":
                target[name] = draw(arrays(array.shape, array.dtype))
            case "few" if array.size:
                changed = array.copy()
                places = draw(st.lists(st.integers(0, array.size - 1), max_size=3))
                changed.flat[places] = draw(arrays((len(places),), array.dtype))
                target[name] = changed
    return base, target


def same(ours: Tensors, theirs: Tensors) -> bool:
    """Whether they are equal bit for bit, NaN and dtypes included."""
    return encode_tensors(ours) == encode_tensors(theirs)


@given(pairs())
def test_any_tensors_come_back_from_any_base(pair: tuple[Tensors, Tensors]) -> None:
    base, target = pair
    data = encode_delta(base, target)
    assert same(decode_delta(base, data, max_bytes=LIMIT), target)
    assert encode_delta(base, target) == data


@given(
    st.integers(0, 3000),
    st.floats(0, 1),
    st.integers(1, 127),
    st.integers(0, 2**32),
    st.sampled_from([1, 100]),
)
def test_small_steps_come_back_whatever_their_density(
    size: int, density: float, largest: int, seed: int, thinned: int
) -> None:
    rng = np.random.default_rng(seed)
    base = rng.integers(-128, 128, size).astype(np.int8)
    changed = rng.random(size) < density / thinned
    steps = rng.integers(-largest, largest + 1, size) * changed
    target = (base + steps).astype(np.int8)
    found = decode_delta({"w": base}, encode_delta({"w": base}, {"w": target}), max_bytes=LIMIT)
    np.testing.assert_array_equal(found["w"], target)


def test_arrays_that_are_not_in_c_order_or_big_endian_come_back() -> None:
    base = {"w": np.arange(12, dtype=np.int8).reshape(3, 4), "s": np.arange(6, dtype=">f4")}
    target = {"w": np.asfortranarray(base["w"] + 1), "s": (base["s"] * 2).astype(">f4")}
    assert same(decode_delta(base, encode_delta(base, target), max_bytes=LIMIT), target)
    assert same(decode_delta({}, encode_delta({}, target), max_bytes=LIMIT), target)


def steps_of(size: int, density: float) -> tuple[Tensors, Tensors, float]:
    """Integers, the same after steps of 1, and the entropy of these in bytes."""
    rng = np.random.default_rng(7)
    base = rng.integers(-60, 60, size).astype(np.int8)
    changed = rng.random(size) < density
    target = base + changed * rng.choice(np.array([-1, 1], np.int8), size)
    part = changed.mean()
    plane = -(part * np.log2(part) + (1 - part) * np.log2(1 - part)) * size
    return {"w": base}, {"w": target.astype(np.int8)}, (plane + changed.sum()) / 8


@pytest.mark.parametrize("density", [0.01, 0.03, 0.06, 0.12, 0.24, 0.5])
def test_steps_of_one_are_near_their_entropy(density: float) -> None:
    base, target, entropy = steps_of(68_600, density)
    assert len(encode_delta(base, target)) < 1.04 * entropy + 64


def test_what_did_not_change_costs_nothing() -> None:
    tensors: Tensors = {f"weight.{k}": np.full((256, 256), k, np.int8) for k in range(20)}
    assert len(encode_delta(tensors, tensors)) == len(encode_delta({}, {})) <= 8


def test_the_coding_is_the_one_that_takes_the_fewest_bytes() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(-128, 128, 4096).astype(np.int8)
    zeros, ramp = np.zeros(4096, np.int8), np.arange(4096, dtype=np.int32)
    cases: list[tuple[Array, Array, pb.TensorCoding]] = [
        (noise, noise + (rng.random(4096) < 0.05).astype(np.int8), pb.TENSOR_CODING_GAPS),
        (noise, noise + (rng.random(4096) < 0.5).astype(np.int8), pb.TENSOR_CODING_BIT_PLANES),
        (noise, zeros, pb.TENSOR_CODING_WHOLE),
        (ramp * 1000, ramp * 1000 + 3, pb.TENSOR_CODING_DIFFERENCE),
        (ramp, ramp.reshape(64, 64), pb.TENSOR_CODING_WHOLE),
        (ramp, ramp.astype(np.float32), pb.TENSOR_CODING_WHOLE),
    ]
    for before, after, coding in cases:
        data = encode_delta({"w": before}, {"w": after})
        assert unframe(pb.TensorSetDelta, data, max_bytes=LIMIT).tensors[0].coding == coding


BASE: Tensors = {
    "b": np.arange(40, dtype=np.int32),
    "s": np.linspace(0, 1, 9, dtype=np.float32),
    "w": np.arange(-100, 100, dtype=np.int8),
    "yes": np.array([True, False]),
}
TARGET: Tensors = {
    "b": BASE["b"] + 7,
    "new": np.eye(3, dtype=np.float16),
    "s": BASE["s"],
    "w": BASE["w"] + np.random.default_rng(0).choice(np.array([0, 0, 0, 0, 3], np.int8), 200),
    "yes": ~BASE["yes"],
}
DELTA = encode_delta(BASE, TARGET)


@given(st.data())
def test_damage_is_always_noticed(data: st.DataObject) -> None:
    out = bytearray(DELTA)
    match data.draw(st.sampled_from(["flip", "cut", "insert", "swap"])):
        case "flip":
            out[data.draw(st.integers(0, len(out) - 1))] ^= data.draw(st.integers(1, 255))
        case "cut":
            del out[data.draw(st.integers(0, len(out) - 1)) :]
        case "insert":
            at = data.draw(st.integers(0, len(out)))
            out[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        case "swap":
            at = data.draw(st.integers(1, len(out) - 1))
            out = out[at:] + out[:at]
    if bytes(out) != DELTA:
        with pytest.raises(WireError):
            decode_delta(BASE, bytes(out), max_bytes=LIMIT)


def message() -> pb.TensorSetDelta:
    return unframe(pb.TensorSetDelta, DELTA)


def refused(changed: pb.TensorSetDelta, match: str, error: type[WireError] = WireError) -> None:
    with pytest.raises(error, match=match):
        decode_delta(BASE, frame(changed), max_bytes=LIMIT)


@given(st.data())
def test_a_hostile_delta_with_a_good_checksum_gives_tensors_or_a_wire_error(
    data: st.DataObject,
) -> None:
    changed = message()
    each = data.draw(st.sampled_from(list(changed.tensors)))
    match data.draw(st.sampled_from(["data", "sizes", "coding", "dtype", "shape", "gaps", "name"])):
        case "data":
            each.data = data.draw(st.binary(max_size=40))
        case "sizes":
            sizes = data.draw(st.lists(st.integers(0, 2**32 - 1), max_size=5))
            each.ClearField("stream_bytes")
            each.stream_bytes.extend(sizes)
        case "coding":
            each.coding = data.draw(st.integers(0, 9))  # type: ignore[assignment]
        case "dtype":
            each.dtype = data.draw(st.integers(0, 12))  # type: ignore[assignment]
        case "shape":
            each.ClearField("shape")
            each.shape.extend(data.draw(st.lists(st.integers(0, 2**32 - 1), max_size=9)))
        case "gaps":
            each.gap_bytes = data.draw(st.integers(0, 2**32 - 1))
        case "name":
            each.name = data.draw(st.sampled_from([*BASE, "new", "zzz"]))
    try:
        found = decode_delta(BASE, frame(changed), max_bytes=LIMIT)
    except WireError:
        return
    assert sum(array.nbytes for array in found.values()) <= LIMIT


def test_tensors_out_of_order_or_told_twice_are_refused() -> None:
    changed = message()
    tensors = list(changed.tensors)
    for order in (tensors[::-1], [tensors[0], *tensors]):
        refused(pb.TensorSetDelta(tensors=order), "sorted and unique")
    refused(pb.TensorSetDelta(removed=["w", "b"]), "sorted and unique")


def test_what_the_base_does_not_hold_is_refused() -> None:
    changed = message()
    changed.tensors[-1].name = "zzz"
    refused(changed, "the base has no tensor 'zzz'")
    refused(pb.TensorSetDelta(removed=["zzz"]), "removes what is not there")
    changed = message()
    changed.removed.append("b")
    refused(changed, "removes what is not there, or what it tells")
    with pytest.raises(WireError):
        decode_delta({}, DELTA, max_bytes=LIMIT)


def test_a_base_of_other_shapes_is_refused() -> None:
    for name in ("b", "w"):
        other = BASE | {name: np.zeros(33, BASE[name].dtype)}
        with pytest.raises(WireError):
            decode_delta(other, DELTA, max_bytes=LIMIT)
    with pytest.raises(WireError):
        decode_delta(BASE | {"b": BASE["b"].astype(np.int64)}, DELTA, max_bytes=LIMIT)


def test_tensors_that_say_they_are_too_large_are_refused_before_anything_is_allocated() -> None:
    changed = message()
    (new,) = (each for each in changed.tensors if each.name == "new")
    for shape in ([2**32 - 1] * MAX_AXES, [LIMIT // 2 + 1], [MAX_TENSOR_BYTES]):
        new.ClearField("shape")
        new.shape.extend(shape)
        refused(changed, "the limit is", LimitExceeded)
    with pytest.raises(LimitExceeded):
        decode_delta(BASE, DELTA, max_bytes=sum(each.nbytes for each in TARGET.values()) - 1)
    with pytest.raises(LimitExceeded):
        decode_delta(BASE, DELTA, max_bytes=len(DELTA) - 1)


def test_streams_that_say_another_size_are_refused() -> None:
    for sizes, match in (([], "were said"), ([2**32 - 1] * 4, "were said")):
        changed = message()
        changed.tensors[0].ClearField("stream_bytes")
        changed.tensors[0].stream_bytes.extend(sizes)
        refused(changed, match)
    changed = message()
    weights = next(each for each in changed.tensors if each.name == "w")
    weights.gap_bytes = 2**32 - 1
    refused(changed, "gaps")


def test_a_bool_that_is_neither_is_refused() -> None:
    changed = message()
    yes = next(each for each in changed.tensors if each.name == "yes")
    yes.coding, yes.data = pb.TENSOR_CODING_WHOLE, b"\x02\x01"
    yes.dtype = pb.D_TYPE_BOOL
    yes.ClearField("stream_bytes")
    yes.ClearField("gap_bytes")
    yes.shape.append(2)
    yes.stream_bytes.append(2)
    refused(changed, "a bool must be 0 or 1")


def test_a_dtype_that_cannot_travel_is_refused() -> None:
    bad: NDArray[Any] = np.zeros(3, np.complex64)
    with pytest.raises(WireError, match="cannot travel"):
        encode_delta({}, {"w": bad})
