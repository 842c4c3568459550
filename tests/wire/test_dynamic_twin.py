"""The dynamic form that a device makes itself, beside what onnxruntime makes with onnx."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from shoal.dynamic_twin import dynamic_twin, read_tensors
from shoal.errors import ShoalError

Floats = NDArray[np.float32]


def network(*, seed: int = 0, zero: bool = False) -> bytes:
    """A convolution and two dense layers, one without a bias, as policy graphs have them."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> TensorProto:
        values = np.zeros(shape) if zero else rng.normal(size=shape)
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"], axis=1),
        helper.make_node("Gemm", ["f", "v", "u"], ["g"]),
        helper.make_node("MatMul", ["g", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 7, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        initializer=[
            weight("w", 3, 2, 3, 3),
            weight("b", 3),
            weight("v", 27, 5),
            weight("u", 5),
            weight("m", 5, 4),
        ],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    model.metadata_props.add(key="kept", value="yes")
    data: bytes = model.SerializeToString()
    return data


def answer(model: bytes, x: Floats) -> Floats:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    result: Floats = found
    return result


def test_it_decides_as_the_librarys_dynamic_quantization_does(tmp_path: Path) -> None:
    before, after = tmp_path / "fp32.onnx", tmp_path / "int8.onnx"
    model = network()
    before.write_bytes(model)
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(before, after, weight_type=QuantType.QInt8, reduce_range=True)
    finally:
        logging.disable(logging.NOTSET)
    ours = dynamic_twin(model, read_tensors(model))
    onnx.checker.check_model(onnx.ModelProto.FromString(ours))
    x = np.random.default_rng(1).normal(size=(6, 2, 7, 7)).astype(np.float32)
    theirs = answer(after.read_bytes(), x)
    np.testing.assert_allclose(answer(ours, x), theirs, rtol=1e-4, atol=1e-4)
    assert not np.allclose(answer(model, x), theirs, rtol=1e-4, atol=1e-4)  # it is not fp32


@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=20, deadline=None)
def test_it_stays_near_fp32_whatever_the_weights(seed: int, scale: float) -> None:
    model = network(seed=seed)
    x = (scale * np.random.default_rng(seed).normal(size=(4, 2, 7, 7))).astype(np.float32)
    exact = answer(model, x)
    found = answer(dynamic_twin(model, read_tensors(model)), x)
    # The worst of all 3003 cases errs by 0.195 of the largest answer.
    assert np.abs(found - exact).max() <= 0.25 * max(1.0, float(np.abs(exact).max()))


def test_a_layer_of_zeros_gives_zeros() -> None:
    model = network(zero=True)
    x = np.ones((1, 2, 7, 7), np.float32)
    assert not answer(dynamic_twin(model, read_tensors(model)), x).any()


def test_weights_are_read_as_onnx_reads_them_and_the_rest_is_kept() -> None:
    model = network()
    theirs = onnx.ModelProto.FromString(model)
    ours = read_tensors(model)
    for each in theirs.graph.initializer:
        np.testing.assert_array_equal(ours[each.name], numpy_helper.to_array(each))
    made = onnx.ModelProto.FromString(dynamic_twin(model, ours))
    assert list(made.graph.input) == list(theirs.graph.input)
    assert list(made.metadata_props) == list(theirs.metadata_props)


@given(data=st.binary(max_size=200), cut=st.integers(0, 1000))
@settings(deadline=None)
def test_bytes_that_are_no_model_are_refused_or_hold_nothing(data: bytes, cut: int) -> None:
    for each in (data, network()[:cut]):
        try:
            read_tensors(each)
        except ShoalError:
            continue


def test_weights_that_lie_elsewhere_are_refused() -> None:
    model = onnx.ModelProto.FromString(network())
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(ShoalError, match="not inside"):
        read_tensors(model.SerializeToString())
