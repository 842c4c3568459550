"""Quantization: the arithmetic of the graph, and what is published for it."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import ACTIONS, Case, make_case, pixels
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.quant_utils import quantize_data
from quantize_cases import CASES, cartpole, dense, layer, quantizer_for
from torch import nn

from cloud_learner.models.integers import (
    UNSIGNED_MAX,
    WEIGHT_MAX,
    IntegerAffine,
    channel_reach,
    quantize_affine,
)
from cloud_learner.models.policy_graph import PRECISIONS
from cloud_learner.quantization import quantize
from cloud_learner.quantization.gap import measure
from cloud_learner.quantization.quantize import Quantized, Quantizer
from cloud_learner.quantization.sample import Sample
from cloud_learner.quantization.session import feeds, open_session
from shoal.errors import PolicyRejected
from shoal.spaces import Discrete, unbounded
from shoal.tensors import Array

PLAIN = ("cartpole", "three layers", "one layer", "int32", "bool", "box", "greedy", "normalized")


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    name: str = request.param
    return CASES[name]()


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
