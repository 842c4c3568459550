"""The weightless ONNX graph of a policy, for each precision.

A graph depends on the spaces, the layer widths and the precision alone: its bytes are the same for
every version, and every initializer is external, to be handed to onnxruntime by name. Sampling and
log-probability are inside, so a device needs nothing but observation and noise.

int8 uses onnxruntime's QGemm, whose arithmetic is one integer product, one float32 multiply by
`input scale * weight scale / output scale` and a round to even: the same on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from shoal.policy import ACTION, DISTRIBUTION, LOG_PROB, NOISE, OBSERVATION
from shoal.spaces import Discrete, EnvSpec, action_shape, observation_box, width

Precision = Literal["int8", "int8_fp32_head", "fp32"]

_OPSET: Final = 17
_IR_VERSION: Final = 9
_CONTRIB: Final = "com.microsoft"
_PLACE: Final = "tensors"  # external data must name a place; none is ever opened
_BYTES: Final = {
    TensorProto.FLOAT: 4,
    TensorProto.INT32: 4,
    TensorProto.INT8: 1,
    TensorProto.UINT8: 1,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a graph is made from.

    Attributes:
        spec: The spaces.
        hidden: Width of each hidden layer.
    """

    spec: EnvSpec
    hidden: tuple[int, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Inputs, hidden layers, outputs."""
        inputs = math.prod(observation_box(self.spec).shape)
        return (inputs, *self.hidden, width(self.spec.action))


def build_graph(architecture: Architecture, precision: Precision) -> bytes:
    """Builds the graph of an architecture at one precision.

    Its initializers, all external (i counts the layers from 0, `[in, out]` is the layer's shape):

    * `input.gain` f32 `[inputs]`, `input.scale`, `input.zero`: float to u8, each feature its range
    * `weight.i` s8 `[in, out]`, `weight.i.scale` f32 `[out]`, `weight.i.zero` s8, `bias.i` s32
    * `output.i.scale`, `output.i.zero`: of the u8 activations after hidden layer i
    * where a layer is fp32: `weight.i` f32 `[in, out]` and `bias.i` f32 `[out]`
    * Box actions: `log_std` and `std` f32 `[A]`, `log_prob.offset` f32
    """
    graph = _Graph()
    features = graph.features(architecture.spec)
    outputs = graph.layers(features, architecture.widths, precision)
    if isinstance(architecture.spec.action, Discrete):
        graph.sample_categorical(outputs)
    else:
        graph.sample_gaussian(outputs, action_shape(architecture.spec.action))
    return graph.serialize(architecture)


class _Graph:
    """Nodes and external initializers as they are added."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._initializers: list[TensorProto] = []

    def features(self, spec: EnvSpec) -> str:
        """Observations as float32 `[N, inputs]`."""
        box = observation_box(spec)
        name = OBSERVATION
        if box.dtype.newbyteorder("=").str[1:] != "f4":
            name = self._node("Cast", [name], "observation.float", to=TensorProto.FLOAT)
        if len(box.shape) != 1:
            name = self._node("Flatten", [name], "observation.flat", axis=1)
        return name

    def layers(self, name: str, widths: tuple[int, ...], precision: Precision) -> str:
        """The policy's layers; gives its float32 outputs `[N, outputs]`."""
        if precision == "fp32":
            return self._float_layers(name, widths, first=0)
        scale, zero = self._scalars("input")
        gain = self._tensor("input.gain", TensorProto.FLOAT, widths[0])
        name = self._node("Mul", [name, gain], "input.gained")
        name = self._node("QuantizeLinear", [name, scale, zero], "input.quantized")
        last = len(widths) - 2
        for index in range(last):
            inputs = self._gemm_inputs(name, scale, zero, index, widths)
            scale, zero = self._scalars(f"output.{index}")
            name = self._qgemm([*inputs, scale, zero], f"output.{index}")
        if precision == "int8_fp32_head":
            name = self._node("DequantizeLinear", [name, scale, zero], "head.input")
            return self._float_layers(name, widths, first=last)
        return self._qgemm(self._gemm_inputs(name, scale, zero, last, widths), f"output.{last}")

    def sample_categorical(self, logits: str) -> None:
        """Gumbel-max sampling (Maddison et al. 2014) and the log-probability of its choice."""
        perturbed = self._node("Add", [logits, NOISE], "perturbed")
        self._node("ArgMax", [perturbed], ACTION, axis=1, keepdims=0)
        log_probs = self._node("LogSoftmax", [logits], "log_probs", axis=1)
        axis = self._node("Constant", [], "axis", value_ints=[1])
        index = self._node("Unsqueeze", [ACTION, axis], "action.column")
        chosen = self._node("GatherElements", [log_probs, index], "log_prob.column", axis=1)
        self._node("Squeeze", [chosen, axis], LOG_PROB)
        self._node("Identity", [logits], DISTRIBUTION)

    def sample_gaussian(self, mean: str, shape: tuple[int, ...]) -> None:
        """Adds std * noise to the mean; the log-density needs the noise alone."""
        size = math.prod(shape)
        std = self._tensor("std", TensorProto.FLOAT, size)
        scaled = self._node("Mul", [NOISE, std], "noise.scaled")
        if len(shape) == 1:
            self._node("Add", [mean, scaled], ACTION)
        else:
            flat = self._node("Add", [mean, scaled], "action.flat")
            wanted = self._node("Constant", [], "action.shape", value_ints=[-1, *shape])
            self._node("Reshape", [flat, wanted], ACTION)
        squares = self._node("Mul", [NOISE, NOISE], "noise.squared")
        axis = self._node("Constant", [], "axis", value_ints=[1])
        total = self._node("ReduceSum", [squares, axis], "noise.norm", keepdims=0)
        factor = self._node("Constant", [], "minus_half", value_float=-0.5)
        exponent = self._node("Mul", [total, factor], "exponent")
        offset = self._tensor("log_prob.offset", TensorProto.FLOAT)
        self._node("Add", [exponent, offset], LOG_PROB)
        extent = self._node("Shape", [mean], "mean.shape")
        log_std = self._tensor("log_std", TensorProto.FLOAT, size)
        spread = self._node("Expand", [log_std, extent], "log_std.rows")
        self._node("Concat", [mean, spread], DISTRIBUTION, axis=1)

    def serialize(self, architecture: Architecture) -> bytes:
        """The model's bytes."""
        spec, width_ = architecture.spec, architecture.widths[-1]
        box, discrete = observation_box(spec), isinstance(spec.action, Discrete)
        graph = helper.make_graph(
            self._nodes,
            "policy",
            [
                _value(OBSERVATION, helper.np_dtype_to_tensor_dtype(box.dtype), *box.shape),
                _value(NOISE, TensorProto.FLOAT, width_),
            ],
            [
                _value(
                    ACTION,
                    TensorProto.INT64 if discrete else TensorProto.FLOAT,
                    *action_shape(spec.action),
                ),
                _value(LOG_PROB, TensorProto.FLOAT),
                _value(DISTRIBUTION, TensorProto.FLOAT, width_ if discrete else 2 * width_),
            ],
            initializer=self._initializers,
        )
        model = helper.make_model(
            graph,
            producer_name="shoal",
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIB, 1)],
        )
        data: bytes = model.SerializeToString(deterministic=True)
        return data

    def _float_layers(self, name: str, widths: tuple[int, ...], first: int) -> str:
        last = len(widths) - 2
        for index in range(first, last + 1):
            weight = self._tensor(
                f"weight.{index}", TensorProto.FLOAT, widths[index], widths[index + 1]
            )
            bias = self._tensor(f"bias.{index}", TensorProto.FLOAT, widths[index + 1])
            name = self._node("Gemm", [name, weight, bias], f"output.{index}")
            if index != last:
                name = self._node("Relu", [name], f"relu.{index}")
        return name

    def _gemm_inputs(
        self, name: str, scale: str, zero: str, index: int, widths: tuple[int, ...]
    ) -> list[str]:
        inputs, outputs = widths[index], widths[index + 1]
        key = f"weight.{index}"
        return [
            name,
            scale,
            zero,
            self._tensor(key, TensorProto.INT8, inputs, outputs),
            self._tensor(f"{key}.scale", TensorProto.FLOAT, outputs),
            self._tensor(f"{key}.zero", TensorProto.INT8, outputs),
            self._tensor(f"bias.{index}", TensorProto.INT32, outputs),
        ]

    def _qgemm(self, inputs: list[str], output: str) -> str:
        self._nodes.append(
            helper.make_node(
                "QGemm", inputs, [output], domain=_CONTRIB, alpha=1.0, transA=0, transB=0
            )
        )
        return output

    def _scalars(self, key: str) -> tuple[str, str]:
        return (
            self._tensor(f"{key}.scale", TensorProto.FLOAT),
            self._tensor(f"{key}.zero", TensorProto.UINT8),
        )

    def _node(
        self, kind: str, inputs: list[str], output: str, **attributes: float | list[int]
    ) -> str:
        node = helper.make_node(kind, inputs, [output])
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        self._nodes.append(node)
        return output

    def _tensor(self, name: str, dtype: TensorProto.DataType, *shape: int) -> str:
        tensor = TensorProto(
            name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL
        )
        length = math.prod(shape) * _BYTES[dtype]
        for key, value in (("location", _PLACE), ("offset", "0"), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        self._initializers.append(tensor)
        return name


def _value(name: str, dtype: int, *shape: int) -> ValueInfoProto:
    """A graph input or output `[N, *shape]`."""
    return helper.make_tensor_value_info(name, dtype, ["N", *shape])
