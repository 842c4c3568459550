"""Who sends decides how each column travels: by what compression saved, tried now and then."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays, dtypes

from shoal.packing import BALANCED, SMALLEST, TRIED_AGAIN, Packing
from shoal.tensors import Array
from shoal.v1 import columns_pb2 as pb

RNG = np.random.default_rng(0)
NOISE = RNG.standard_normal(8192)  # of 64 bits, a few of which say the same
FEW_VALUES = RNG.choice(np.array([0.1, 0.7, 2.3], np.float32), 8192)


def form(packing: Packing, array: Array) -> pb.ColumnForm:
    return packing.pack({"rewards": array})["rewards"].form


def test_noise_stays_as_it_is_and_what_repeats_goes_into_a_frame() -> None:
    assert form(Packing(), NOISE) == pb.COLUMN_FORM_PLAIN
    assert form(Packing(), FEW_VALUES) in (pb.COLUMN_FORM_ZSTD, pb.COLUMN_FORM_PLANES)


def test_where_each_byte_counts_a_small_gain_is_taken() -> None:
    packed = Packing(SMALLEST).pack({"rewards": NOISE})["rewards"]
    assert packed.form != pb.COLUMN_FORM_PLAIN
    assert len(packed.data) < NOISE.nbytes


def test_a_large_column_keeps_its_form_and_is_looked_at_again_later() -> None:
    packing = Packing(BALANCED)
    assert form(packing, NOISE) == pb.COLUMN_FORM_PLAIN
    later = [form(packing, FEW_VALUES) for _ in range(TRIED_AGAIN)]
    assert set(later[:-1]) == {pb.COLUMN_FORM_PLAIN}
    assert later[-1] != pb.COLUMN_FORM_PLAIN


def test_columns_are_known_apart() -> None:
    packing = Packing(BALANCED)
    packed = packing.pack({"rewards": NOISE, "log_probs": FEW_VALUES})
    assert packed["rewards"].form == pb.COLUMN_FORM_PLAIN
    assert packed["log_probs"].form != pb.COLUMN_FORM_PLAIN


def test_one_value_is_one_value_and_what_is_0_or_1_is_a_bit() -> None:
    assert form(Packing(), np.full((64, 4), np.nan, np.float32)) == pb.COLUMN_FORM_CONSTANT
    assert form(Packing(), np.zeros((64, 4), np.bool_)) == pb.COLUMN_FORM_CONSTANT
    packed = Packing().pack({"actions": np.arange(64) % 2})["actions"]
    assert packed.form == pb.COLUMN_FORM_BITS
    assert len(packed.data) == 8


def test_negative_zero_is_not_zero() -> None:
    values = np.zeros(64, np.float32)
    values[7] = -0.0
    packed = Packing().pack({"rewards": values})["rewards"]
    assert packed.form != pb.COLUMN_FORM_CONSTANT
    assert packed.stored == np.float32


@given(st.data())
def test_whole_numbers_lie_in_the_fewest_bytes_that_hold_them(data: st.DataObject) -> None:
    dtype = data.draw(dtypes.filter(lambda dtype: dtype.kind in "iuf"))
    array = data.draw(arrays((5, 2), dtype))
    packed = Packing().pack({"actions": array})["actions"]
    if packed.form == pb.COLUMN_FORM_PLAIN:
        back = np.frombuffer(packed.data, packed.stored).astype(dtype)
        assert back.tobytes() == array.tobytes()
    assert packed.stored.itemsize <= dtype.itemsize


def test_small_whole_rewards_take_a_byte() -> None:
    rewards = np.tile(np.array([-1, 0, 1, 0], np.float32), 16)
    packed = Packing().pack({"rewards": rewards})["rewards"]
    assert packed.stored == np.int8
