"""The rule by which integers become the tensors of the fp32 graph."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.errors import PolicyRejected
from shoal.float_twin import READS, Read, decode_reads, encode_reads, float_tensors
from shoal.tensors import Array

SCALES = st.floats(2.0**-30, 2.0**10, width=32)
SIDES = st.integers(1, 6)


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Array]:
    """One layer of any integers, behind an activation of any scale and zero."""
    rows, columns = draw(SIDES), draw(SIDES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scales = draw(st.lists(SCALES, min_size=columns, max_size=columns))
    return {
        "weight.0": rng.integers(-128, 128, (rows, columns), np.int8),
        "weight.0.scale": np.array(scales, np.float32),
        "weight.0.zero": np.zeros(columns, np.int8),
        "bias.0": rng.integers(-(2**31), 2**31, columns, np.int32),
        "output.9.scale": np.array(draw(SCALES), np.float32),
        "output.9.zero": np.array(draw(st.integers(0, 255)), np.uint8),
    }


def nearest(value: Fraction) -> np.float32:
    """The float32 nearest to a rational number."""
    return np.float32(float(value))  # its distance from float64 is far below a float32 unit


@given(layers())
def test_integers_become_the_nearest_floats_whatever_they_are(tensors: dict[str, Array]) -> None:
    rows = len(tensors["weight.0"])
    made = float_tensors(tensors, [[Read("output.9", rows)]])
    assert set(made) == {"weight.0", "bias.0"}
    scale = Fraction(float(tensors["output.9.scale"]))
    for column, per_weight in enumerate(tensors["weight.0.scale"].tolist()):
        for row in range(rows):
            exact = int(tensors["weight.0"][row, column]) * Fraction(per_weight)
            assert made["weight.0"][row, column] == nearest(exact)
        unit = scale * Fraction(per_weight)
        exact = int(tensors["bias.0"][column]) * unit
        assert made["bias.0"][column] == pytest.approx(float(exact), rel=1e-7)


def units_of(numbers: NDArray[np.float64], scale: float, zero: int) -> NDArray[np.float64]:
    """As the integer graph has them, but for rounding."""
    return numbers / scale + zero


@given(st.integers(0, 2**32), st.integers(1, 255), st.integers(0, 255))
def test_pieces_side_by_side_keep_their_own_scales_and_zeros(
    seed: int, first_zero: int, second_zero: int
) -> None:
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.01, 0.1, 2).astype(np.float32)
    tensors: dict[str, Array] = {
        "weight.0": rng.integers(-64, 65, (5, 3), np.int8),
        "weight.0.scale": rng.uniform(0.01, 0.1, 3).astype(np.float32),
        "weight.0.zero": np.zeros(3, np.int8),
        "bias.0": rng.integers(-1000, 1000, 3, np.int32),
        "joined.scale": np.array(1.0, np.float32),
        "joined.zero": np.array(0, np.uint8),
        "output.7.scale": scales[0],
        "output.7.zero": np.array(first_zero, np.uint8),
        "memory.scale": scales[1],
        "memory.zero": np.array(second_zero, np.uint8),
    }
    made = float_tensors(tensors, [[Read("output.7", 2), Read("memory", 3)]])
    numbers = rng.normal(size=5)
    units = np.concatenate(
        [
            units_of(numbers[:2], float(scales[0]), first_zero),
            units_of(numbers[2:], float(scales[1]), second_zero),
        ]
    )
    expected = (units @ tensors["weight.0"] + tensors["bias.0"]) * tensors["weight.0.scale"]
    np.testing.assert_allclose(
        numbers @ made["weight.0"] + made["bias.0"], expected, rtol=1e-4, atol=1e-3
    )


def test_what_is_no_integer_layer_is_copied() -> None:
    tensors = layer() | {"log_std": np.ones(2, np.float32)}
    assert float_tensors(tensors, [[Read("input", 2)]])["log_std"] is tensors["log_std"]


def layer(**changes: Array) -> dict[str, Array]:
    whole: dict[str, Array] = {
        "input.gain": np.ones(2, np.float32),
        "input.scale": np.array(1.0, np.float32),
        "input.zero": np.array(128, np.uint8),
        "weight.0": np.ones((2, 2), np.int8),
        "weight.0.scale": np.ones(2, np.float32),
        "weight.0.zero": np.zeros(2, np.int8),
        "bias.0": np.zeros(2, np.int32),
    }
    return whole | changes


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (layer() | {"stray": np.zeros(2, np.int8)}, "stray is int8"),
        ({name: a for name, a in layer().items() if name != "bias.0"}, "bias.0 is missing"),
        (layer(**{"weight.0": np.ones((2, 2), np.float32)}), "layer 0 is not in integers"),
        (layer(**{"weight.0": np.ones((3, 2), np.int8)}), "layer 0 has 3 inputs"),
        (layer(**{"input.gain": np.ones(5, np.float32)}), "no float twin"),
    ],
)
def test_what_is_not_an_int8_policy_has_no_twin(tensors: dict[str, Array], problem: str) -> None:
    with pytest.raises(PolicyRejected, match=problem) as caught:
        float_tensors(tensors, [[Read("input", 2)]])
    assert caught.value.reason == "float_twin"


@given(st.lists(st.lists(st.builds(Read, st.text(max_size=9), st.integers(0, 9)))))
def test_what_layers_read_round_trips_as_metadata(reads: list[list[Read]]) -> None:
    assert decode_reads({READS: encode_reads(reads)}) == reads


@pytest.mark.parametrize(
    "text", ["", "{", "5", '{"a": 1}', "[[1]]", '[[["a"]]]', '[[["a", "b"]]]', "[" * 100_000]
)
def test_metadata_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(PolicyRejected, match="does not say what its layers read"):
        decode_reads({READS: text})
    with pytest.raises(PolicyRejected, match="does not say"):
        decode_reads({})
