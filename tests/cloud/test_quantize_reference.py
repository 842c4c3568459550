"""A whole int8 graph beside what onnxruntime's own static quantizer makes of the same floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import Case, make_case, pixels
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from quantize_cases import CASES, quantizer_for

from cloud_learner.quantization.export import export_policy
from cloud_learner.quantization.session import feeds, open_session
from shoal.spaces import Discrete
from shoal.tensors import Array

CPU = ["CPUExecutionProvider"]


class Rows(CalibrationDataReader):  # type: ignore[misc] # published without types
    """One batch."""

    def __init__(self, rows: Array) -> None:
        self._left: list[dict[str, Array]] = [{"x": rows}]

    def get_next(self) -> dict[str, Array] | None:
        return self._left.pop() if self._left else None


def float_layers(case: Case, gain: Array | None) -> onnx.ModelProto:
    """The float graph from its numbers `x` to the network's outputs `y`.

    Columns of a vector come multiplied by `gain`, as the int8 graph has them before it quantizes.
    """
    whole = onnx.ModelProto.FromString(export_policy(case.policy))
    nodes = [
        node for node in whole.graph.node if node.op_type in ("Conv", "Gemm", "Relu", "Flatten")
    ]
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    weights = [each for each in whole.graph.initializer if each.name[0] in "wb"]
    if gain is not None:
        first = numpy_helper.to_array(weights[0]) / gain[:, None]
        weights[0].CopyFrom(numpy_helper.from_array(first, weights[0].name))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


def quantized_by_onnxruntime(
    model: onnx.ModelProto, rows: Array, ranges: dict[str, tuple[Array, Array]], directory: Path
) -> Array:
    """What the static quantizer's graph gives for rows, with our ranges of activations."""
    onnx.save(model, directory / "floats.onnx")
    told = {
        name: [{"scale": scale, "zero_point": zero, "quant_type": QuantType.QUInt8}]
        for name, (scale, zero) in ranges.items()
    }
    quantize_static(
        directory / "floats.onnx",
        directory / "integers.onnx",
        Rows(rows),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"TensorQuantOverrides": told},
    )
    made = onnx.load(directory / "integers.onnx")
    # Our last layer gives floats: so does theirs, before it is quantized for a layer to follow.
    last = [node.output[0] for node in made.graph.node if node.op_type == "Gemm"][-1]
    made.graph.output.add(name=last)
    session = InferenceSession(made.SerializeToString(), providers=CPU)
    (found,) = session.run([last], {"x": rows})
    return np.asarray(found)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_whole_int8_graph_gives_what_the_static_quantizer_gives(
    tmp_path: Path, kind: str
) -> None:
    case = CASES["cartpole"]() if kind == "mlp" else make_case(pixels(10, 10, 1), Discrete(3))
    quantizer = quantizer_for(case)
    tensors = quantizer.quantize(case.policy, case.sample).tensors
    session = open_session(quantizer.graphs["int8"], tensors)
    given = feeds(case.policy.observation, case.sample.observations, case.noise)
    (ours,) = session.run(["distribution"], given)
    rows = case.sample.observations.astype(np.float32)
    if kind == "mlp":
        gain = tensors["input.gain"]
        rows = rows * gain
        first = (tensors["input.scale"], tensors["input.zero"])
    else:
        gain = None
        rows = np.ascontiguousarray(rows.transpose(0, 3, 1, 2))
        first = (
            np.array(1.0, np.float32),
            tensors["image.0.zero"],
        )  # theirs counts pixels from 0 to 255
    ranges = {"x": first}
    model = float_layers(case, gain)
    relus = [node.output[0] for node in model.graph.node if node.op_type == "Relu"]
    for place, name in enumerate(relus):
        ranges[name] = (tensors[f"output.{place}.scale"], tensors[f"output.{place}.zero"])
    theirs = quantized_by_onnxruntime(model, rows, ranges, tmp_path)
    # Every integer between is the same: one step of it would show as a thousandth or more.
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
