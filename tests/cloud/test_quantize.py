"""Quantization: the arithmetic of the graph, and what is published for it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from networks import ACTIONS, NEST, Case, bounded, make_case, of_kind, pixels
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.quant_utils import quantize_data
from torch import nn

from cloud_learner.config import NetworkConfig
from cloud_learner.models.integers import (
    UNSIGNED_MAX,
    WEIGHT_MAX,
    IntegerAffine,
    channel_reach,
    hold_range,
    hold_sampled_range,
    quantize_affine,
)
from cloud_learner.models.policy_graph import PRECISIONS
from cloud_learner.quantization import quantize
from cloud_learner.quantization.dead_zone import DeadZone
from cloud_learner.quantization.gap import measure
from cloud_learner.quantization.golden import GOLDEN_BYTES, GOLDEN_ROWS, clear_rows, golden_rows
from cloud_learner.quantization.quantize import Quantized, Quantizer
from cloud_learner.quantization.sample import Sample
from cloud_learner.quantization.session import feeds, open_session
from shoal.errors import PolicyRejected
from shoal.layout import ActionLayout
from shoal.policy import decode_golden, encode_golden
from shoal.spaces import Box, Discrete, unbounded
from shoal.tensors import Array, decode_tensors, encode_tensors

MAX_BYTES = 1 << 24


def dense(*hidden: int) -> NetworkConfig:
    return NetworkConfig(hidden=hidden)


def cartpole(seed: int = 0) -> Case:
    return make_case(unbounded((4,)), Discrete(2), dense(64, 64), seed=seed)


def layer(case: Case, place: int) -> nn.Linear:
    found = case.policy.network.layers[place]
    assert isinstance(found, nn.Linear)
    return found


def full(dtype: str, shape: tuple[int, ...], high: float) -> Box:
    return Box(np.zeros(shape, dtype), np.full(shape, high, dtype))


CASES: dict[str, Callable[[], Case]] = {
    "cartpole": cartpole,
    "three layers": lambda: make_case(unbounded((6,)), Discrete(5), dense(16, 24, 8)),
    "one layer": lambda: make_case(unbounded((6,)), Discrete(5), dense(16)),
    "one action": lambda: make_case(unbounded((3,)), Discrete(1)),
    "float64": lambda: make_case(unbounded((4,), np.float64), Discrete(3)),
    "scalar": lambda: make_case(unbounded(()), Discrete(3)),
    "pixels": lambda: make_case(full("u1", (4, 5), 255), Discrete(3)),
    "int32": lambda: make_case(full("i4", (7,), 100), Discrete(3)),
    "bool": lambda: make_case(full("?", (7,), 1), Discrete(3)),
    "box": lambda: make_case(unbounded((4,)), full("f4", (2,), 4.0)),
    "box of one": lambda: make_case(unbounded((3,)), unbounded((1,))),
    "box matrix": lambda: make_case(unbounded((3,)), unbounded((2, 3))),
    "box scalar": lambda: make_case(unbounded((3,)), unbounded(())),
    "normalized": lambda: make_case(unbounded((4,)), Discrete(3), of_kind("mlp", normalize=True)),
    "multi-discrete": lambda: make_case(unbounded((3,)), ACTIONS["2-D multi-discrete"]),
    "squash": lambda: make_case(unbounded((3,)), bounded((2,), -1.0, 2.0), head="squash"),
    "greedy": lambda: make_case(unbounded((3,)), Discrete(4), head="greedy", dueling=True),
    "image": lambda: make_case(pixels(20, 20, 2), Discrete(3)),
    "nest": lambda: make_case(NEST, ACTIONS["dict"]),
    "lstm": lambda: make_case(unbounded((4,)), Discrete(3), of_kind("lstm")),
    "attention": lambda: make_case(unbounded((4,)), Discrete(3), of_kind("attention")),
    "nest lstm": lambda: make_case(NEST, ACTIONS["dict"], of_kind("lstm", normalize=True)),
    "own torso": lambda: make_case(unbounded((4,)), Discrete(3), of_kind("networks:own_torso")),
}
PLAIN = ("cartpole", "three layers", "one layer", "int32", "bool", "box", "greedy", "normalized")


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    name: str = request.param
    return CASES[name]()


def quantizer_for(case: Case, kl_max: float = 1.0) -> Quantizer:
    return Quantizer(case.policy, kl_max=kl_max)


def run(graph: bytes, quantized: Quantized, case: Case) -> dict[str, Array]:
    session = open_session(graph, quantized.tensors)
    names = [output.name for output in session.get_outputs()]
    given = feeds(case.policy.observation, case.sample.observations, case.noise, case.sample.states)
    return dict(zip(names, session.run(names, given), strict=True))


def integer_outputs(tensors: dict[str, Array], observations: Array) -> NDArray[np.float32]:
    """The policy's outputs by integer arithmetic, as the graph's documentation says it."""
    inputs = observations.reshape(len(observations), -1).astype(np.float32) * tensors["input.gain"]
    scale, zero = tensors["input.scale"], int(tensors["input.zero"])
    units = np.clip(np.rint(inputs / scale) + zero, 0, 255).astype(np.int64)
    last = max(int(n.split(".")[1]) for n in tensors if n.startswith("bias."))
    for index in range(last + 1):
        key = f"weight.{index}"
        total = (units - zero) @ tensors[key].astype(np.int64) + tensors[f"bias.{index}"]
        scales = scale * tensors[f"{key}.scale"]
        if index == last:
            outputs: NDArray[np.float32] = total.astype(np.float32) * scales
            return outputs
        scale, zero = tensors[f"output.{index}.scale"], int(tensors[f"output.{index}.zero"])
        rounded = np.rint(total.astype(np.float32) * (scales / scale))
        units = np.clip(rounded + zero, 0, 255).astype(np.int64)
    raise AssertionError("there is no last layer")


@pytest.mark.parametrize("name", PLAIN)
def test_int8_is_integer_arithmetic_bit_for_bit(name: str) -> None:
    case = CASES[name]()
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.policy, case.sample)
    assert quantized.precision == "int8"
    outputs = run(quantizer.graphs["int8"], quantized, case)
    shift = quantized.tensors.get("input.shift", np.float32(0.0))
    given = case.sample.observations.astype(np.float32) - shift
    expected = integer_outputs(dict(quantized.tensors), given)
    np.testing.assert_array_equal(outputs["distribution"][:, : expected.shape[1]], expected)


def test_an_int8_convolution_is_integer_arithmetic_bit_for_bit() -> None:
    case = make_case(pixels(6, 7, 2), Discrete(3))
    quantizer = quantizer_for(case)
    tensors = quantizer.quantize(case.policy, case.sample).tensors
    units = case.sample.observations.transpose(0, 3, 1, 2).astype(np.float64)
    scale = tensors["image.0.scale"]
    assert scale == np.float32(1.0 / 255.0)
    for place in (0, 1):
        total = nn.functional.conv2d(
            torch.from_numpy(units), torch.from_numpy(tensors[f"weight.{place}"].astype(np.float64))
        ).numpy() + tensors[f"bias.{place}"].reshape(-1, 1, 1)
        after = tensors[f"output.{place}.scale"]
        factor = scale * tensors[f"weight.{place}.scale"] / after
        rounded = np.rint(total.astype(np.float32) * factor.reshape(-1, 1, 1))
        units, scale = np.clip(rounded, 0, UNSIGNED_MAX).astype(np.float64), after
    graph = onnx.ModelProto.FromString(quantizer.graphs["int8"])
    graph.graph.output.add(name="output.1.units")
    session = open_session(graph.SerializeToString(), tensors)
    given = feeds(case.policy.observation, case.sample.observations, case.noise)
    (found,) = session.run(["output.1.units"], given)
    np.testing.assert_array_equal(found, units)


def test_int8_is_near_the_policy(case: Case) -> None:
    quantized = quantizer_for(case).quantize(case.policy, case.sample)
    assert 0.0 <= quantized.kl_quantization < 0.05
    assert 0.0 <= quantized.agreement <= 1.0


@given(
    seed=st.integers(0, 10_000),
    inputs=st.integers(1, 20),
    outputs=st.integers(1, 9),
    kernel=st.sampled_from([(), (3, 3)]),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
)
def test_weights_are_those_of_onnxruntimes_own_quantizer(
    seed: int, inputs: int, outputs: int, kernel: tuple[int, ...], scale: float
) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.normal(size=(outputs, inputs, *kernel)) * scale).astype(np.float32)
    ours = quantized_weight(weight)
    for channel in range(outputs):
        zero, their_scale, values = quantize_data(
            weight[channel].ravel(), onnx.TensorProto.INT8, symmetric=True, reduce_range=True
        )
        assert int(zero) == 0
        assert ours.weight_scale[channel].numpy() == np.float32(their_scale)
        np.testing.assert_array_equal(ours.weight[channel].flatten(), values)


def quantized_weight(weight: NDArray[np.float32]) -> IntegerAffine:
    ours = torch.from_numpy(weight)
    return quantize_affine(ours, torch.zeros(len(ours)), torch.ones(()), channel_reach(ours))


class Rows(CalibrationDataReader):  # type: ignore[misc] # published without types
    """What the library's quantizer calibrates with."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self._rows = iter([{"x": rows}])

    def get_next(self) -> dict[str, NDArray[np.float32]]:
        return next(self._rows, {})


@pytest.mark.parametrize("kind", ["conv", "dense"])
def test_a_layer_is_that_of_onnxruntimes_static_quantizer(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    spread = rng.integers(0, 256, (64, 3, 6, 6) if kind == "conv" else (64, 20))
    spread.flat[0], spread.flat[1] = 0, 255  # its range then is that of all pixels
    shape = (4, 3, 3, 3) if kind == "conv" else (4, 20)
    weight = rng.normal(size=shape).astype(np.float32)
    bias = rng.normal(size=4).astype(np.float32)
    rows = (spread / 255.0).astype(np.float32)
    theirs = library_quantizer(kind, weight, bias, rows, tmp_path)
    ours, biases = torch.from_numpy(weight), torch.from_numpy(bias)
    made = quantize_affine(ours, biases, torch.tensor(1.0 / 255.0), channel_reach(ours))
    np.testing.assert_array_equal(theirs["w_quantized"].reshape(shape), made.weight)
    np.testing.assert_array_equal(theirs["w_scale"], made.weight_scale)
    np.testing.assert_array_equal(theirs["b_quantized"], made.bias)
    functional = nn.functional
    given = torch.from_numpy(rows)
    product = functional.conv2d(given, ours, biases) if kind == "conv" else given @ ours.T + biases
    reach = product.relu().max().reshape(1)
    np.testing.assert_allclose(theirs["linear_scale"], reach[0] / UNSIGNED_MAX, rtol=1e-6)
    assert theirs["linear_zero_point"] == 0


def library_quantizer(
    kind: str,
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    rows: NDArray[np.float32],
    directory: Path,
) -> dict[str, Array]:
    """The initializers that onnxruntime's own quantizer makes of a layer and its ReLU."""
    helper = onnx.helper
    node = (
        helper.make_node("Conv", ["x", "w", "b"], ["linear"])
        if kind == "conv"
        else helper.make_node("Gemm", ["x", "w", "b"], ["linear"], transB=1)
    )
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["linear"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", *rows.shape[1:]])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(bias, "b")],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, directory / "layer.onnx")
    quantize_static(
        directory / "layer.onnx",
        directory / "quantized.onnx",
        Rows(rows),
        quant_format=QuantFormat.QOperator,
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    made = onnx.load(directory / "quantized.onnx").graph.initializer
    return {each.name: onnx.numpy_helper.to_array(each) for each in made}


def test_a_channel_of_zeros_is_harmless() -> None:
    weight = np.zeros((2, 4), np.float32)
    weight[1] = 1.0
    quantized = quantized_weight(weight)
    assert quantized.weight_scale.isfinite().all()
    assert not quantized.weight[0].any()


def test_no_kernel_can_saturate_on_pairs_of_products(case: Case) -> None:
    tensors = quantizer_for(case).quantize(case.policy, case.sample).tensors
    for name, tensor in tensors.items():
        if tensor.dtype == np.int8:
            assert np.abs(tensor.astype(np.int64)).max() <= WEIGHT_MAX, name
    assert 255 * 2 * WEIGHT_MAX < 2**15


def test_graphs_do_not_change_with_weights_or_versions() -> None:
    case, other = cartpole(), cartpole(seed=9)
    quantizer = quantizer_for(case)
    before = dict(quantizer.graphs)
    quantizer.quantize(case.policy, case.sample)
    quantizer.quantize(other.policy, other.sample)
    assert quantizer.graphs == before == quantizer_for(other).graphs
    assert len({hashlib.sha256(graph).digest() for graph in before.values()}) == len(PRECISIONS)
    assert max(map(len, before.values())) < 4096


def test_golden_vectors_hold_bit_for_bit_in_a_session_from_bytes_alone(case: Case) -> None:
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.policy, case.sample)
    tensors = decode_tensors(encode_tensors(dict(quantized.tensors)), max_bytes=MAX_BYTES)
    golden = decode_golden(encode_golden(quantized.golden))
    session = open_session(bytes(quantizer.graphs[quantized.precision]), tensors)
    assert 1 <= len(golden.observations) <= GOLDEN_ROWS
    assert golden.noise.shape[1] == ActionLayout.of(case.spec.action).noise_width
    assert (golden.states is not None) == bool(case.policy.state_width)
    given = feeds(case.policy.observation, golden.observations, golden.noise, golden.states)
    names = ["action", "log_prob", *([] if golden.states is None else ["next_state"])]
    expected = [golden.actions, golden.log_probs, golden.next_states]
    for found, wanted in zip(session.run(names, given), expected, strict=False):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["cartpole", "multi-discrete", "nest"])
def test_golden_actions_do_not_hang_on_a_rounding_error(name: str) -> None:
    case = CASES[name]()
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.policy, case.sample)
    golden = quantized.golden
    session = open_session(quantizer.graphs["int8"], quantized.tensors)
    for nudge in (-3e-4, 3e-4):
        noise = golden.noise + np.float32(nudge) * (np.arange(golden.noise.shape[1]) % 2)
        given = feeds(case.policy.observation, golden.observations, noise.astype(np.float32))
        (actions,) = session.run(["action"], given)
        if case.policy.action.discrete:
            np.testing.assert_array_equal(actions, golden.actions)
        else:
            np.testing.assert_array_equal(actions[:, 2:], golden.actions[:, 2:])


@given(st.integers(0, 2**24))
def test_golden_observations_weigh_little_but_are_never_too_few(row_bytes: int) -> None:
    rows = golden_rows(row_bytes)
    assert 4 <= rows <= GOLDEN_ROWS
    assert rows == 4 or rows * row_bytes <= GOLDEN_BYTES


def test_golden_actions_of_a_greedy_policy_hang_neither_on_values_nor_on_the_threshold() -> None:
    case = CASES["greedy"]()
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.policy, case.sample)
    golden = quantized.golden
    for nudge in (-5e-4, 5e-4):
        tensors = dict(quantized.tensors)
        tensors["explore.threshold"] = tensors["explore.threshold"] + np.float32(nudge)
        given = feeds(case.policy.observation, golden.observations, golden.noise)
        session = open_session(quantizer.graphs["int8"], tensors)
        np.testing.assert_array_equal(session.run(["action"], given)[0], golden.actions)


def test_golden_rows_look_at_each_whole_number_of_a_mixed_action() -> None:
    case = make_case(unbounded((4,)), ACTIONS["dict"])  # a Box of 2, then 2, 3, 4, 2 and 3 values
    starts, columns = (4, 6, 9, 13, 15), (2, 4, 7, 11, 13)
    distribution = np.zeros((6, 18), np.float32)
    distribution[:, list(starts)] = 1.0  # each element's first value is ahead
    noise = np.zeros((6, 16), np.float32)
    for row, (start, column) in enumerate(zip(starts, columns, strict=True)):
        distribution[row, start] = 0.0
        noise[row, column] = 1e-5
    clear = clear_rows(case.policy, distribution, noise)
    assert clear.tolist() == [False] * 5 + [True]


def test_a_costly_network_is_calibrated_with_fewer_rows() -> None:
    cheap, costly = (
        Quantizer(make_case(space, Discrete(2)).policy)
        for space in (unbounded((4,)), pixels(84, 84, 4))
    )
    assert cheap.calibration_rows == 512
    assert 64 <= costly.calibration_rows < 200


def test_a_single_observation_is_enough(case: Case) -> None:
    one = Sample(case.sample.observations[:1], case.sample.states[:1])
    quantized = quantizer_for(case).quantize(case.policy, one)
    assert len(quantized.golden.observations) == 1


def test_falls_back_head_first_then_throughout_and_says_what_it_refused(case: Case) -> None:
    whole = quantizer_for(case).quantize(case.policy, case.sample)
    strict = quantizer_for(case, kl_max=-1.0).quantize(case.policy, case.sample)
    assert strict.precision == "fp32"
    assert list(strict.refused) == ["int8", "int8_fp32_head"]
    assert strict.refused["int8"] == whole.kl_quantization
    assert strict.kl_quantization <= 1e-6
    assert strict.agreement >= whole.agreement
    head_gap = strict.refused["int8_fp32_head"]
    if head_gap < whole.kl_quantization:
        between = math.sqrt(whole.kl_quantization * head_gap)
        middle = quantizer_for(case, kl_max=between).quantize(case.policy, case.sample)
        assert middle.precision == "int8_fp32_head"
        assert list(middle.refused) == ["int8"]
        assert middle.kl_quantization == head_gap


def test_a_head_in_fp32_is_nearer_where_the_head_is_what_hurts() -> None:
    strict = quantizer_for(cartpole(), kl_max=-1.0)
    case = cartpole()
    refused = strict.quantize(case.policy, case.sample).refused
    assert refused["int8_fp32_head"] < refused["int8"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_never_published(bad: float) -> None:
    case = cartpole()
    with torch.no_grad():
        layer(case, 1).weight[3, 4] = bad
    with pytest.raises(PolicyRejected) as caught:
        quantizer_for(case).quantize(case.policy, case.sample)
    assert caught.value.reason == "non_finite"


def test_finite_weights_whose_outputs_overflow_are_never_published() -> None:
    case = cartpole()
    with torch.no_grad():
        for place in range(3):
            layer(case, place).weight.fill_(1e30)
    quantizer = quantizer_for(case)
    with pytest.raises(PolicyRejected) as caught:
        quantizer.quantize(case.policy, case.sample)
    assert caught.value.reason == "non_finite"
    mended = quantizer.quantize(cartpole().policy, case.sample)
    assert mended.precision == "int8"
    assert mended.kl_quantization < 0.01


def test_features_of_very_different_ranges_each_keep_their_resolution() -> None:
    case = cartpole()
    ranges = np.array([1e-3, 1.0, 1e3, 1e5], np.float32)
    with torch.no_grad():
        layer(case, 0).weight.div_(torch.from_numpy(ranges))
    wide = Sample(case.sample.observations * ranges, case.sample.states)
    quantized = quantizer_for(case).quantize(case.policy, wide)
    assert quantized.precision == "int8"
    assert quantized.kl_quantization < 0.01


def test_action_values_that_hardly_differ_are_measured_by_their_differences() -> None:
    case = make_case(unbounded((4,)), Discrete(3), dense(64, 64), head="greedy")
    near = quantizer_for(case).quantize(case.policy, case.sample)
    with torch.no_grad():  # all actions are worth 1000 more, and differ as little as before
        layer(case, 2).bias.add_(1000.0)
    far = quantizer_for(case).quantize(case.policy, case.sample)
    assert far.kl_quantization == pytest.approx(near.kl_quantization, abs=1e-3)
    assert far.agreement == pytest.approx(near.agreement, abs=0.02)
    with torch.no_grad():  # and now they differ a thousand times less
        layer(case, 2).weight.mul_(1e-3)
        layer(case, 2).bias.sub_(1000.0).mul_(1e-3)
    small = quantizer_for(case).quantize(case.policy, case.sample)
    assert small.kl_quantization == pytest.approx(near.kl_quantization, rel=0.05)


def test_what_all_actions_have_in_common_costs_relative_values_no_precision() -> None:
    case = make_case(unbounded((4,)), Discrete(3), dense(64, 64), head="greedy")
    with torch.no_grad():  # values that move together with the state, and little between actions
        shared = layer(case, 2).weight[:1].clone() * 50.0
        layer(case, 2).weight.add_(shared)
    absolute = quantizer_for(case).quantize(case.policy, case.sample)
    case.policy.relative_values = True
    relative = quantizer_for(case).quantize(case.policy, case.sample)
    assert relative.kl_quantization < absolute.kl_quantization / 10.0
    assert relative.kl_quantization < 0.005
    assert relative.agreement >= absolute.agreement


@pytest.mark.parametrize("name", ["box", "squash", "lstm", "image"])
def test_a_mean_error_of_the_outputs_is_taken_out_of_the_last_bias(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]()
    with torch.no_grad():  # large steps between the last weights
        layer(case, case.policy.plan.last).weight.mul_(20.0)
    monkeypatch.setattr(quantize, "CORRECTED_OVER", math.inf)
    plain = quantizer_for(case, kl_max=1e9).quantize(case.policy, case.sample)
    monkeypatch.setattr(quantize, "CORRECTED_OVER", 0.0)
    corrected = quantizer_for(case, kl_max=1e9).quantize(case.policy, case.sample)
    assert corrected.precision == plain.precision == "int8"
    assert corrected.kl_quantization < plain.kl_quantization


def test_agreement_counts_rows_where_greedy_actions_are_alike() -> None:
    case = make_case(unbounded((4,)), ACTIONS["dict"])
    params = case.asked()
    assert measure(case.policy, params, params).agreement == 1.0
    other = params.clone()
    other[:64, 0] += 0.2  # a mean, by more than 1 % of its range of 3, averaged with one unmoved
    assert measure(case.policy, params, other).agreement == 0.75
    other = params.clone()
    other[:128, 0] += 0.02
    assert measure(case.policy, params, other).agreement == 1.0
    other[:128, -3:] = torch.tensor([9.0, 0.0, 0.0])
    alike = params[:128, -3:].argmax(-1) == 0
    expected = (128 + int(alike.sum())) / 256
    assert measure(case.policy, params, other).agreement == expected


@given(
    st.lists(st.floats(0.0, 1e6, width=32), min_size=1, max_size=20),
)
def test_a_held_range_always_covers_what_is_needed_and_is_never_far_too_wide(
    needs: list[float],
) -> None:
    held = None
    for need in needs:
        held = hold_range(held, torch.tensor([need]))
        assert held[0] >= need
        assert held[0] > 0.0
        if need > 0.0:
            assert held[0] * 0.5 <= need


def test_a_range_moves_only_when_it_must() -> None:
    first = hold_range(None, torch.tensor([1.0, 2.0]))
    np.testing.assert_array_equal(first, [1.0, 2.0])
    np.testing.assert_array_equal(hold_range(first, torch.tensor([0.9, 1.3])), first)
    moved = hold_range(first, torch.tensor([1.01, 1.9]))
    assert moved[0] > 1.01
    assert moved[1] == 2.0
    np.testing.assert_array_equal(hold_range(moved, torch.tensor([1.01, 1.9])), moved)


def test_small_steps_of_training_change_few_integers() -> None:
    case = cartpole()
    quantizer = quantizer_for(case)
    versions = []
    for _ in range(3):
        versions.append(quantizer.quantize(case.policy, case.sample).tensors)
        with torch.no_grad():
            for parameter in case.policy.parameters():
                parameter.mul_(0.999)
    for before, after in pairwise(versions):
        same = np.mean(before["weight.1"] == after["weight.1"])
        assert same > 0.9
        np.testing.assert_array_equal(before["weight.1.scale"], after["weight.1.scale"])
        np.testing.assert_array_equal(before["input.gain"], after["input.gain"])


@pytest.mark.parametrize("name", ["cartpole", "nest", "attention"])
def test_equal_weights_give_equal_bytes_after_a_restart(name: str) -> None:
    case = CASES[name]()
    first = quantizer_for(case)
    first.quantize(case.policy, case.sample)
    with torch.no_grad():
        for parameter in case.policy.parameters():
            parameter.mul_(1.05)
    second = quantizer_for(case)
    second.load_state_dict(first.state_dict())
    before, after = (q.quantize(case.policy, case.sample) for q in (first, second))
    assert encode_tensors(dict(before.tensors)) == encode_tensors(dict(after.tensors))
    assert encode_golden(before.golden) == encode_golden(after.golden)


def test_a_refused_version_leaves_the_ranges_as_they_were() -> None:
    case = cartpole()
    quantizer = quantizer_for(case)
    quantizer.quantize(case.policy, case.sample)
    before = quantizer.state_dict()
    with torch.no_grad():
        layer(case, 0).weight.fill_(1e38)
    with pytest.raises(PolicyRejected):
        quantizer.quantize(case.policy, case.sample)
    after = quantizer.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


# --------------------------------------------------------------------------------- small refreshes


@given(
    hnp.arrays(np.float32, 40, elements=st.floats(-60, 60, width=32)),
    hnp.arrays(np.float32, (5, 40), elements=st.floats(-0.75, 0.75, width=32)),
    st.sampled_from([0.0, 0.25, 0.5]),
)
def test_integers_err_by_half_a_step_and_the_dead_zone_at_most(
    start: NDArray[np.float32], moves: NDArray[np.float32], width: float
) -> None:
    zone, units = DeadZone(width), torch.from_numpy(start)
    before = zone.settle("w", units)
    np.testing.assert_array_equal(before, units.round())
    for move in moves:
        units = units + torch.from_numpy(move)
        after = zone.settle("w", units)
        assert bool(((after - units).abs() <= 0.5 + width).all())
        moved = after != before
        assert bool((after[moved] == units[moved].round()).all())
        assert torch.equal(zone.settle("w", units), after)  # the same weights change nothing
        before = after


def nudge(case: Case, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in case.policy.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)


def changes(quantizer: Quantizer, case: Case) -> int:
    """How many weights change over some small updates."""
    before = quantizer.quantize(case.policy, case.sample).tensors
    changed = 0
    for seed in range(4):
        nudge(case, 1e-3, seed)
        after = quantizer.quantize(case.policy, case.sample).tensors
        changed += sum(int((after[n] != before[n]).sum()) for n in after if n.startswith("weight"))
        before = after
    return changed


def test_a_dead_zone_has_fewer_integers_change() -> None:
    plain, zoned = (
        changes(Quantizer(case.policy, kl_max=1.0, dead_zone=width), case)
        for case, width in ((cartpole(), 0.0), (cartpole(), 0.25))
    )
    assert zoned < 0.7 * plain


@pytest.mark.parametrize("name", ["cartpole", "image", "lstm", "nest"])
def test_a_quantizer_that_goes_on_elsewhere_gives_the_same_bytes(name: str) -> None:
    case = CASES[name]()
    here = Quantizer(case.policy, kl_max=1.0, dead_zone=0.25)
    for seed in range(3):
        here.quantize(case.policy, case.sample)
        nudge(case, 1e-3, seed)
    there = Quantizer(case.policy, kl_max=1.0, dead_zone=0.25)
    there.load_state_dict(here.state_dict())
    for seed in range(3):
        ours, theirs = (each.quantize(case.policy, case.sample) for each in (here, there))
        assert encode_tensors(dict(ours.tensors)) == encode_tensors(dict(theirs.tensors))
        assert encode_golden(ours.golden) == encode_golden(theirs.golden)
        nudge(case, 1e-3, seed)


def test_golden_vectors_ask_the_same_over_versions_and_their_decisions_stay_clear() -> None:
    case = cartpole()
    quantizer = Quantizer(case.policy, kl_max=1.0)
    asked = []
    for seed in range(16):
        golden = quantizer.quantize(case.policy, case.sample).golden
        asked.append(golden.observations)
        session = open_session(
            quantizer.graphs["int8"], quantizer.quantize(case.policy, case.sample).tensors
        )
        given = feeds(case.policy.observation, golden.observations, golden.noise)
        (distribution,) = session.run(["distribution"], given)
        assert clear_rows(case.policy, distribution, golden.noise).all()
        nudge(case, 0.02, seed)
    kept = sum(np.array_equal(a, b) for a, b in pairwise(asked))
    assert kept >= 10


def test_a_range_of_samples_shrinks_only_after_many_that_needed_less() -> None:
    held, low = hold_sampled_range(None, torch.tensor([1.0, 1.0]), None)
    small = torch.tensor([0.1, 0.9])
    steps = 0
    while held[0] == 1.0:
        held, low = hold_sampled_range(held, small, low)
        steps += 1
    assert steps == 16
    np.testing.assert_allclose(held, [0.11, 1.0])
    held, low = hold_sampled_range(held, torch.tensor([2.0, 1.0]), low)
    assert held[0] == pytest.approx(2.2)  # and grows at once
    for _ in range(15):
        held, low = hold_sampled_range(held, small, low)
    held, low = hold_sampled_range(held, torch.tensor([2.0, 1.0]), low)
    held, low = hold_sampled_range(held, small, low)
    assert held[0] == pytest.approx(2.2)  # one that needs it starts the count afresh
