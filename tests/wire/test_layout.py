"""Layouts: what goes in comes out, nothing changes its dtype, and every leaf has its place."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import RUN_ID, cartpole_spec, observations, rover_spec, spaces

from shoal.layout import ActionLayout, ObservationLayout
from shoal.noise import noise_block
from shoal.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    parts,
    unbounded,
)
from shoal.tensors import Array, decode_tensor, encode_tensor

LEADS = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@given(spaces(), LEADS, st.data())
def test_packing_and_unpacking_are_inverse_and_change_no_bit(
    space: Space, lead: tuple[int, ...], data: st.DataObject
) -> None:
    layout = ObservationLayout.of(space)
    packed = data.draw(observations(space, lead))
    assert packed.shape == (*lead, *layout.shape)
    assert packed.dtype == layout.dtype
    leaves = layout.unpack(packed)
    assert list(leaves) == [part.path for part in parts(space)]
    for field in layout.fields:
        assert leaves[field.path].dtype == field.dtype
        assert leaves[field.path].shape == (*lead, *field.shape)
    again = layout.pack(leaves)
    assert again.dtype == packed.dtype
    assert again.tobytes() == packed.tobytes()


@given(spaces(), st.data())
def test_a_leaf_comes_out_as_it_went_in(space: Space, data: st.DataObject) -> None:
    layout = ObservationLayout.of(space)
    leaves = layout.unpack(data.draw(observations(space, (2,))))
    back = layout.unpack(decode_tensor(encode_tensor("", layout.pack(leaves))))
    for path, leaf in leaves.items():
        assert back[path].dtype == leaf.dtype
        assert back[path].tobytes() == leaf.tobytes()


@given(spaces())
def test_leaves_lie_one_after_another_without_gaps(space: Space) -> None:
    layout = ObservationLayout.of(space)
    offset = 0
    for field in layout.fields:
        assert field.offset == offset
        offset += field.size_bytes
    if layout.packed:
        assert (str(layout.dtype), layout.shape) == ("uint8", (offset,))
    action = ActionLayout.of(space)
    start = noise = 0
    for choice in action.choices:
        assert (choice.start, choice.noise_start) == (start, noise)
        start, noise = start + choice.size, noise + choice.noise_width
    assert (action.size, action.noise_width) == (start, noise)
    assert action.size == math.prod(action.shape)
    assert noise_block(RUN_ID, 0, 2, 3, space).shape == (2, 3, noise)


def test_a_leaf_alone_is_not_packed() -> None:
    layout = ObservationLayout.of(cartpole_spec().observation)
    assert (layout.packed, str(layout.dtype), layout.shape) == (False, "float32", (4,))
    given_in = np.ones((3, 4), np.float32)
    assert layout.unpack(given_in)[""] is given_in
    assert layout.fields[0].input_name("observation") == "observation"


def test_every_leaf_has_a_name_dtype_and_shape_of_its_own() -> None:
    layout = ObservationLayout.of(rover_spec().observation)
    seen = [(f.input_name("observation"), str(f.dtype), f.shape) for f in layout.fields]
    assert seen == [
        ("observation.arm.0", "float64", (3,)),
        ("observation.arm.1", "int64", ()),
        ("observation.camera", "uint8", (8, 8, 3)),
        ("observation.doors", "int8", (2,)),
        ("observation.grid", "int64", (2, 2)),
    ]
    assert layout.shape == (24 + 8 + 192 + 2 + 32,)


@pytest.mark.parametrize(
    ("space", "dtype", "shape", "noise", "values"),
    [
        (Discrete(4, 7), "int64", (), 4, [(4,)]),
        (MultiBinary((2, 2)), "int64", (2, 2), 8, [(2, 2, 2, 2)]),
        (MultiDiscrete(np.array([[2, 3], [4, 5]]), np.zeros((2, 2), np.int64)), "int64", (2, 2), 14,
         [(2, 3, 4, 5)]),
        (unbounded((2, 3), np.float64), "float32", (2, 3), 6, [()]),
        (Box(np.zeros(2, np.int32), np.ones(2, np.int32)), "float32", (2,), 2, [()]),
        (Tuple((Discrete(2), Discrete(3))), "int64", (2,), 5, [(2,), (3,)]),
        (Tuple((Discrete(2),)), "int64", (1,), 2, [(2,)]),
        (Dict((("a", Discrete(2)), ("b", unbounded((3,))))), "float32", (4,), 5, [(2,), ()]),
    ],
)  # fmt: skip
def test_actions_are_counted_from_0_or_flat_numbers(
    space: Space, dtype: str, shape: tuple[int, ...], noise: int, values: list[tuple[int, ...]]
) -> None:
    layout = ActionLayout.of(space)
    assert (str(layout.dtype), layout.shape, layout.noise_width) == (dtype, shape, noise)
    assert [choice.values for choice in layout.choices] == values
    assert layout.discrete == (dtype == "int64")


def test_packing_brings_a_leaf_of_another_byte_order_into_the_wires() -> None:
    space = Tuple((unbounded((2,)),))
    layout = ObservationLayout.of(space)
    leaf: Array = np.array([[1.5, -2]], ">f4")
    assert layout.unpack(layout.pack({"0": leaf}))["0"].tolist() == [[1.5, -2]]
