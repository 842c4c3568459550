"""Spaces travel whole, and their fingerprint tells them apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import boxes, cartpole_spec, nested, rover_spec, specs

from shoal.errors import WireError
from shoal.layout import ActionLayout
from shoal.spaces import (
    MAX_DEPTH,
    MAX_PARTS,
    Box,
    Dict,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    parts,
)
from shoal.tensors import Array, encode_tensor
from shoal.v1 import space_pb2 as pb


def same(left: Space, right: Space) -> bool:
    match left, right:
        case Box(), Box():
            arrays = [(left.low, right.low), (left.high, right.high)]
            return left.dtype == right.dtype and all(np.array_equal(x, y) for x, y in arrays)
        case MultiDiscrete(), MultiDiscrete():
            arrays = [(left.nvec, right.nvec), (left.start, right.start)]
            return all(np.array_equal(x, y) for x, y in arrays)
        case Dict(), Dict():
            keys = [[key for key, _ in space.items] for space in (left, right)]
            values = zip(left.items, right.items, strict=False)
            return keys[0] == keys[1] and all(same(x, y) for (_, x), (_, y) in values)
        case Tuple(), Tuple():
            items = zip(left.items, right.items, strict=False)
            return len(left.items) == len(right.items) and all(same(x, y) for x, y in items)
    return left == right


@given(specs())
def test_a_specification_round_trips(spec: EnvSpec) -> None:
    data = spec.to_pb().SerializeToString()
    back = EnvSpec.from_pb(pb.EnvSpec.FromString(data))
    assert back.fingerprint == spec.fingerprint
    assert same(back.observation, spec.observation)
    assert same(back.action, spec.action)
    assert (back.env_id, back.reward_threshold, back.max_episode_steps) == (
        spec.env_id,
        spec.reward_threshold,
        spec.max_episode_steps,
    )


@given(specs(), specs())
def test_fingerprints_are_equal_exactly_when_both_spaces_are(left: EnvSpec, right: EnvSpec) -> None:
    equal = same(left.observation, right.observation) and same(left.action, right.action)
    assert (left.fingerprint == right.fingerprint) == equal


@given(specs())
def test_names_and_thresholds_leave_the_fingerprint_alone(spec: EnvSpec) -> None:
    other = dataclasses.replace(spec, env_id="other", reward_threshold=1.0, max_episode_steps=3)
    assert other.fingerprint == spec.fingerprint


def test_fingerprints_never_change() -> None:
    assert cartpole_spec().fingerprint.hex() == (
        "4156f2088c2480f725a813e95e47de1348432b209885ad977a24e223e1ef3d1a"
    )


def test_fingerprints_of_nested_spaces_never_change() -> None:
    assert rover_spec().fingerprint.hex() == (
        "e3d65e0a3d8397d2356f4b4dfe99babd59aba76143a740014f96237cd4629075"
    )


def test_byte_order_in_memory_leaves_the_fingerprint_alone() -> None:
    high = np.array([1, 2], "<f4")
    little = Box(-high, high)
    big = Box((-high).astype(">f4"), high.astype(">f4"))
    assert little.canonical() == big.canonical()


@pytest.mark.parametrize(
    ("space", "kind", "size", "dtype", "shape"),
    [
        (Discrete(4), "gumbel", 4, "int64", ()),
        (Box(np.zeros((2, 3), "f4"), np.ones((2, 3), "f4")), "normal", 6, "float32", (2, 3)),
        (Box(np.zeros((), "f8"), np.ones((), "f8")), "normal", 1, "float32", ()),
    ],
)
def test_says_how_actions_are_sampled_and_kept(
    space: Space, kind: str, size: int, dtype: str, shape: tuple[int, ...]
) -> None:
    assert ActionLayout.of(space).choices[0].noise == kind
    assert ActionLayout.of(space).noise_width == size
    assert ActionLayout.of(space).dtype == np.dtype(dtype)
    assert ActionLayout.of(space).shape == shape


@pytest.mark.parametrize("n", [0, -1, 2**40])
def test_refuses_a_discrete_space_of_impossible_size(n: int) -> None:
    with pytest.raises(WireError):
        Discrete(n)


@pytest.mark.parametrize("nvec", [[], [0], [3, -1], [2**20, 1], [2**62, 2**62], [[2**63 - 1]]])
def test_refuses_a_multi_discrete_space_of_impossible_size(nvec: list[int]) -> None:
    counts = np.array(nvec, np.int64)
    with pytest.raises(WireError, match="multi-discrete"):
        MultiDiscrete(counts, np.zeros_like(counts))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (2**20, 2), (-1,)])
def test_refuses_a_multi_binary_space_of_impossible_size(shape: tuple[int, ...]) -> None:
    with pytest.raises(WireError, match="multi-binary"):
        MultiBinary(shape)


@pytest.mark.parametrize(
    ("nvec", "start"),
    [(np.ones(2, np.int64), np.ones(3, np.int64)), (np.ones(2, np.int32), np.ones(2, np.int64))],
)
def test_refuses_starts_that_do_not_agree(nvec: Array, start: Array) -> None:
    with pytest.raises(WireError, match="multi-discrete"):
        MultiDiscrete(nvec, start)


ONE = Discrete(2)


@pytest.mark.parametrize("items", [(), (("b", ONE), ("a", ONE)), (("a", ONE),) * 2, (("", ONE),)])
def test_refuses_a_dict_without_unique_keys_in_order(items: tuple[tuple[str, Space], ...]) -> None:
    with pytest.raises(WireError, match="dict"):
        Dict(items)
    with pytest.raises(WireError, match="tuple"):
        Tuple(())


def within(space: Space, depth: int) -> Space:
    for _ in range(depth):
        space = Tuple((space,))
    return space


def test_refuses_what_is_nested_too_deep_or_has_too_many_leaves_or_two_of_one_name() -> None:
    assert parts(within(ONE, MAX_DEPTH))[0].path == ".".join("0" * MAX_DEPTH)
    deep = EnvSpec("deep", ONE, within(ONE, MAX_DEPTH + 1))
    with pytest.raises(WireError, match="nested deeper"):
        parts(deep.action)
    with pytest.raises(WireError, match="nested deeper"):
        EnvSpec.from_pb(deep.to_pb())
    with pytest.raises(WireError, match="257 leaves"):
        parts(Tuple((ONE,) * (MAX_PARTS + 1)))
    with pytest.raises(WireError, match="same path"):
        parts(Dict((("a", Dict((("b", ONE),))), ("a.b", ONE))))


def fingerprint(space: Space) -> bytes:
    return EnvSpec("", ONE, space).fingerprint


def test_fingerprints_tell_apart_what_has_the_same_leaves() -> None:
    """Shapes, starts, keys, and where the brackets are."""
    two, low = np.full(4, 2), np.zeros(4, np.int64)
    different: list[Space] = [
        MultiDiscrete(two, low),
        MultiDiscrete(two.reshape(2, 2), low.reshape(2, 2)),
        MultiDiscrete(two.reshape(4, 1), low.reshape(4, 1)),
        MultiDiscrete(two, low + 1),
        MultiBinary((4,)),
        MultiBinary((2, 2)),
        ONE,
        Tuple((ONE,)),
        Dict((("0", ONE),)),
        Dict((("1", ONE),)),
        Tuple((ONE, ONE, ONE)),
        Tuple((Tuple((ONE, ONE)), ONE)),
        Tuple((ONE, Tuple((ONE, ONE)))),
        Tuple((Dict((("0", ONE), ("1", ONE))), ONE)),
    ]
    assert len({fingerprint(space) for space in different}) == len(different)
    assert EnvSpec("", ONE, different[0]).fingerprint != EnvSpec("", different[0], ONE).fingerprint


@given(nested(), nested())
def test_fingerprints_of_nested_spaces_are_equal_exactly_when_they_are(
    left: Space, right: Space
) -> None:
    assert (fingerprint(left) == fingerprint(right)) == same(left, right)
    assert fingerprint(Tuple((left, right))) != fingerprint(Tuple((left, right, right)))
    assert (fingerprint(Tuple((left, right))) == fingerprint(Tuple((right, left)))) == same(
        left, right
    )


def test_refuses_bounds_that_do_not_agree() -> None:
    with pytest.raises(WireError, match="one shape"):
        Box(np.zeros(2, np.float32), np.zeros(3, np.float32))
    with pytest.raises(WireError, match="one shape"):
        Box(np.zeros(2, np.float32), np.zeros(2, np.float64))
    with pytest.raises(WireError, match="not supported"):
        Box(np.zeros(2, np.complex64), np.zeros(2, np.complex64))


@given(boxes(), st.data())
def test_refuses_a_bound_that_is_no_number_and_a_box_that_holds_nothing(
    box: Box, data: st.DataObject
) -> None:
    assume(box.dtype.kind in "fiu")
    at = data.draw(st.integers(0, box.low.size - 1))
    low, high = np.zeros(box.shape, box.dtype), np.ones(box.shape, box.dtype)
    above = low.copy()
    above.flat[at] = 2
    with pytest.raises(WireError, match="a lower bound above the upper one"):
        Box(above, high)
    if box.dtype.kind == "f":
        nan = low.copy()
        nan.flat[at] = np.nan
        for bounds in ((nan, high), (low, nan)):
            with pytest.raises(WireError, match="a bound that is NaN: use -inf and inf"):
                Box(*bounds)


def test_refuses_a_specification_without_spaces() -> None:
    with pytest.raises(WireError, match="missing"):
        EnvSpec.from_pb(pb.EnvSpec(env_id="x"))


@given(st.binary(max_size=200))
def test_any_bytes_make_a_specification_or_a_wire_error(data: bytes) -> None:
    message = pb.EnvSpec()
    try:
        message.ParseFromString(data)
    except Exception:  # noqa: BLE001 only what parses is of interest here
        return
    try:
        EnvSpec.from_pb(message)
    except WireError:
        return


EMPTY = pb.Space(
    box=pb.BoxSpace(
        low=encode_tensor("low", np.zeros((0,), np.float32)),
        high=encode_tensor("high", np.zeros((0,), np.float32)),
    )
)
GOOD = pb.Space(discrete=pb.DiscreteSpace(n=2))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (EMPTY, r": a box of shape \(0,\) has no element"),
        (pb.Space(discrete=pb.DiscreteSpace(n=0)), ": a discrete space of 0 values"),
        (pb.Space(discrete=pb.DiscreteSpace(n=1 << 40)), ": a discrete space of 1099511627776"),
        (pb.Space(multi_binary=pb.MultiBinarySpace(shape=[0])), r": a multi-binary space of shape"),
        (pb.Space(multi_binary=pb.MultiBinarySpace(shape=[1 << 31] * 8)), ": a multi-binary space"),
        (
            pb.Space(
                multi_discrete=pb.MultiDiscreteSpace(
                    nvec=encode_tensor("nvec", np.array([3, 0])),
                    start=encode_tensor("start", np.array([0, 0])),
                )
            ),
            ": a multi-discrete space needs from 1",
        ),
        (pb.Space(dict=pb.DictSpace()), ": a dict space needs"),
        (pb.Space(tuple=pb.TupleSpace()), ": a tuple space needs"),
        (
            pb.Space(
                dict=pb.DictSpace(
                    items=[
                        pb.NamedSpace(
                            key="arm", space=pb.Space(tuple=pb.TupleSpace(items=[GOOD, EMPTY]))
                        )
                    ]
                )
            ),
            r"\.arm\.1: a box of shape",
        ),
    ],
)
def test_a_space_without_a_value_or_too_large_is_refused_by_its_name(
    bad: pb.Space, said: str
) -> None:
    with pytest.raises(WireError, match=f"^observation{said}"):
        EnvSpec.from_pb(pb.EnvSpec(env_id="x", observation=bad, action=GOOD))
    with pytest.raises(WireError, match=f"^action{said}"):
        EnvSpec.from_pb(pb.EnvSpec(env_id="x", observation=GOOD, action=bad))


def test_a_box_larger_than_what_travels_is_refused_before_anything_is_made_of_it() -> None:
    wide = np.broadcast_to(np.float32(1), (1 << 20, 1 << 10))  # no memory behind it
    with pytest.raises(WireError, match="make it smaller in the environment"):
        Box(wide, wide)
