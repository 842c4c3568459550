"""The layers of a policy graph, in int8 or fp32.

int8 uses onnxruntime's QGemm and QLinearConv, whose arithmetic is one integer product, one float32
multiply by `input scale * weight scale / output scale` and a round to even: the same on every
machine. Pieces that are joined keep scales of their own, which are folded into the rows of the next
layer's weights, and zero points of their own, which are folded into its bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import TensorProto

from cloud_learner.models.features import VectorLeaf
from cloud_learner.models.graph_memory import split_state, write_attention, write_lstm
from cloud_learner.models.graph_writer import CONTRIB, GraphWriter
from cloud_learner.models.normalizer import NORMALIZED_MAX
from cloud_learner.models.plan import Attention, Plan
from shoal.float_twin import Read
from shoal.policy import OBSERVATION

Precision = Literal["int8", "int8_fp32_head", "fp32"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Numbers on their way through a graph, `[N, width]`, in one form or both.

    Attributes:
        key: Names their scale and zero point: `key.scale`, `key.zero`.
        width: Columns (or channels).
        units: Name of the u8 tensor; None where there is none yet.
        floats: Name of the float32 tensor; None where there is none yet.
    """

    key: str
    width: int
    units: str | None = None
    floats: str | None = None


Pieces = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class _Input:
    """What an integer layer reads: names of units, scale and zero point."""

    units: str
    scale: str
    zero: str


class GraphRunner:
    """Writes the nodes of each step of `flow`.

    Its initializers (i is the place of a layer in the plan):

    * `input.shift` f32 `[vector]` and `input.gain` f32 `[vector]`: `(x - shift) * gain` is what is
      quantized; without a normalizer there is no shift, and in fp32 no gain
    * `weight.i` s8 `[in, out]` (`[out, in, kernel, kernel]` of a convolution), `weight.i.scale` f32
      `[out]`, `weight.i.zero` s8 `[out]`, `bias.i` s32 `[out]`; where a layer is fp32 `weight.i`
      and `bias.i` are f32
    * `KEY.scale` f32, `KEY.zero` u8: of activations; the keys are `input`, `image.j`, `output.i`,
      `memory`, and `joined` where pieces lie side by side
    * `age_bias` f32 `[window]`: of attention

    Attributes:
        reads: What each integer layer reads, by its place in the plan: for the float twin.
    """

    def __init__(
        self, writer: GraphWriter, plan: Plan, precision: Precision, *, normalized: bool
    ) -> None:
        self._writer = writer
        self._plan = plan
        self._precision = precision
        self._normalized = normalized
        self.reads: dict[int, tuple[Read, ...]] = {}

    def image(self, index: int) -> Pieces:
        """An image as u8 `[N, C, H, W]`."""
        image = self._plan.features.images[index]
        name = image.field.input_name(OBSERVATION)
        if image.channels_last:
            name = self._writer.node(
                "Transpose", [name], f"image.{index}.channels_first", perm=[0, 3, 1, 2]
            )
        return (Piece(f"image.{index}", image.channels, units=name),)

    def conv(self, place: int, value: Pieces) -> Pieces:
        """A convolution and its ReLU."""
        shape = self._plan.conv(place)
        kernel, strides = [shape.kernel] * 2, [shape.stride] * 2
        weight = (shape.outputs, shape.inputs, shape.kernel, shape.kernel)
        name, key = f"output.{place}", f"weight.{place}"
        if not self._integer(place):
            inputs = [
                self._floats(value, place),
                self._writer.tensor(key, TensorProto.FLOAT, *weight),
                self._writer.tensor(f"bias.{place}", TensorProto.FLOAT, shape.outputs),
            ]
            linear = self._writer.node(
                "Conv", inputs, f"{name}.linear", kernel_shape=kernel, strides=strides
            )
            return (
                Piece(
                    name, shape.outputs, floats=self._writer.node("Relu", [linear], f"{name}.relu")
                ),
            )
        given = self._units(value, place)
        inputs = [
            given.units,
            given.scale,
            given.zero,
            *self._weight(place, weight),
            *self._scalars(name),
            self._writer.tensor(f"bias.{place}", TensorProto.INT32, shape.outputs),
        ]
        units = self._writer.node(
            "QLinearConv", inputs, f"{name}.units", kernel_shape=kernel, strides=strides
        )
        return (Piece(name, shape.outputs, units=units),)

    def flatten(self, value: Pieces) -> Pieces:
        """Rows `[N, C * H * W]`."""
        (piece,) = value
        layer = self._plan.conv(int(piece.key.partition(".")[2]))
        width = layer.outputs * layer.height * layer.width
        if piece.units is not None:
            name = self._writer.node("Flatten", [piece.units], f"{piece.key}.flat", axis=1)
            return (Piece(piece.key, width, units=name),)
        assert piece.floats is not None  # noqa: S101 - a piece has one form
        name = self._writer.node("Flatten", [piece.floats], f"{piece.key}.flat", axis=1)
        return (Piece(piece.key, width, floats=name),)

    def vector(self) -> Pieces:
        """All leaves that are not images, side by side."""
        features = self._plan.features
        if features.all_pixels and self._precision != "fp32":
            flats = [
                self._flat(leaf, leaf.field.input_name(OBSERVATION)) for leaf in features.vector
            ]
            return (Piece("input", features.width, units=self._concat(flats, "input.pixels")),)
        parts = [self._numbers(index) for index in range(len(features.vector))]
        name = self._concat(parts, "input.numbers")
        width = features.width
        if self._normalized:
            shift = self._writer.tensor("input.shift", TensorProto.FLOAT, width)
            name = self._writer.node("Sub", [name, shift], "input.shifted")
        if self._normalized or self._precision != "fp32":
            gain = self._writer.tensor("input.gain", TensorProto.FLOAT, width)
            name = self._writer.node("Mul", [name, gain], "input.gained")
        if self._normalized and self._precision == "fp32":
            bounds = [self._writer.number(-NORMALIZED_MAX), self._writer.number(NORMALIZED_MAX)]
            name = self._writer.node("Clip", [name, *bounds], "input.clipped")
        return (Piece("input", width, floats=name),)

    def extra(self) -> Pieces:
        """No policy has any."""
        raise TypeError("only a critic has extra inputs, and it is not exported")

    def join(self, values: Sequence[Pieces]) -> Pieces:
        """Pieces are put together where they are read."""
        return tuple(piece for value in values for piece in value)

    def dense(self, place: int, value: Pieces) -> Pieces:
        """A dense layer and its activation."""
        shape, key = self._plan.dense(place), f"output.{place}"
        if place == self._plan.last:
            return (Piece(key, shape.outputs, floats=self._linear(place, value)),)
        if shape.activation == "tanh" or not self._integer(place):
            name = self._linear(place, value)
            if shape.activation != "none":
                kind = {"relu": "Relu", "tanh": "Tanh"}[shape.activation]
                name = self._writer.node(kind, [name], f"{key}.{shape.activation}")
            return (Piece(key, shape.outputs, floats=name),)
        inputs = [*self._gemm_inputs(place, value), *self._scalars(key)]
        return (Piece(key, shape.outputs, units=self._qgemm(inputs, key)),)

    def remember(self, place: int, value: Pieces) -> Pieces:
        """One step of the memory; writes the next state."""
        memory = self._plan.memory
        assert memory is not None  # noqa: S101 - flow asks only where there is one
        if isinstance(memory, Attention):
            output = write_attention(self._writer, memory, self._linear(place, value))
            return (*value, Piece("memory", memory.units, floats=output))
        before = split_state(self._writer, memory)
        hidden = Piece("memory", memory.units, floats=before.hidden)
        gates = self._linear(place, (*value, hidden))
        output = write_lstm(self._writer, memory, gates, before)
        return (Piece("memory", memory.units, floats=output),)

    def _integer(self, place: int) -> bool:
        if self._precision == "int8_fp32_head":
            return place != self._plan.last
        return self._precision == "int8"

    def _linear(self, place: int, value: Pieces) -> str:
        """A dense layer's float32 output, before its activation."""
        shape, name = self._plan.dense(place), f"output.{place}"
        if self._integer(place):
            return self._qgemm(self._gemm_inputs(place, value), name)
        inputs = [
            self._floats(value, place),
            self._writer.tensor(f"weight.{place}", TensorProto.FLOAT, shape.inputs, shape.outputs),
            self._writer.tensor(f"bias.{place}", TensorProto.FLOAT, shape.outputs),
        ]
        return self._writer.node("Gemm", inputs, name)

    def _gemm_inputs(self, place: int, value: Pieces) -> list[str]:
        shape = self._plan.dense(place)
        given = self._units(value, place)
        return [
            given.units,
            given.scale,
            given.zero,
            *self._weight(place, (shape.inputs, shape.outputs)),
            self._writer.tensor(f"bias.{place}", TensorProto.INT32, shape.outputs),
        ]

    def _weight(self, place: int, shape: tuple[int, ...]) -> list[str]:
        key, outputs = f"weight.{place}", self._plan.layers[place].outputs
        return [
            self._writer.tensor(key, TensorProto.INT8, *shape),
            self._writer.tensor(f"{key}.scale", TensorProto.FLOAT, outputs),
            self._writer.tensor(f"{key}.zero", TensorProto.INT8, outputs),
        ]

    def _qgemm(self, inputs: list[str], output: str) -> str:
        return self._writer.node(
            "QGemm", inputs, output, domain=CONTRIB, alpha=1.0, transA=0, transB=0
        )

    def _units(self, value: Pieces, place: int) -> _Input:
        self.reads[place] = tuple(Read(piece.key, piece.width) for piece in value)
        names = [self._quantized(piece) for piece in value]
        if len(value) == 1:
            return _Input(names[0], *self._scalars(value[0].key))
        return _Input(self._concat(names, f"layer.{place}.units"), *self._scalars("joined"))

    def _quantized(self, piece: Piece) -> str:
        if piece.units is not None:
            return piece.units
        assert piece.floats is not None  # noqa: S101 - a piece has one form
        scalars = self._scalars(piece.key)
        name = f"{piece.floats}.units"
        return self._writer.node("QuantizeLinear", [piece.floats, *scalars], name)

    def _floats(self, value: Pieces, place: int) -> str:
        names = []
        for piece in value:
            name = piece.floats
            if name is None:
                assert piece.units is not None  # noqa: S101 - a piece has one form
                name = self._floated(piece.key, piece.units)
            names.append(name)
        return self._concat(names, f"layer.{place}.floats")

    def _floated(self, key: str, units: str) -> str:
        if key.startswith("image."):
            return self._writer.node("Cast", [units], f"{key}.floats", to=TensorProto.FLOAT)
        return self._writer.node(
            "DequantizeLinear", [units, *self._scalars(key)], f"{units}.floats"
        )

    def _concat(self, names: list[str], output: str) -> str:
        return names[0] if len(names) == 1 else self._writer.node("Concat", names, output, axis=1)

    def _scalars(self, key: str) -> tuple[str, str]:
        return (
            self._writer.tensor(f"{key}.scale", TensorProto.FLOAT),
            self._writer.tensor(f"{key}.zero", TensorProto.UINT8),
        )

    def _flat(self, leaf: VectorLeaf, name: str) -> str:
        if len(leaf.field.shape) == 1:
            return name
        return self._writer.node("Flatten", [name], f"{name}.flat", axis=1)

    def _numbers(self, index: int) -> str:
        """One leaf as float32 columns."""
        leaf = self._plan.features.vector[index]
        name, key = leaf.field.input_name(OBSERVATION), f"leaf.{index}"
        if leaf.kind == "one_hot":
            return self._one_hot(leaf, name, key)
        if leaf.field.dtype.newbyteorder("=") != np.float32:
            name = self._writer.node("Cast", [name], f"{key}.floats", to=TensorProto.FLOAT)
        return self._flat(leaf, name)

    def _one_hot(self, leaf: VectorLeaf, name: str, key: str) -> str:
        writer = self._writer
        if leaf.field.shape == ():
            name = writer.node("Unsqueeze", [name, writer.whole(1)], f"{key}.column")
        else:
            name = self._flat(leaf, name)
            columns = writer.constant(leaf.element_of_column())
            name = writer.node("Gather", [name, columns], f"{key}.columns", axis=1)
        values = writer.constant(leaf.value_of_column()[None])
        equal = writer.node("Equal", [name, values], f"{key}.equal")
        return writer.node("Cast", [equal], f"{key}.floats", to=TensorProto.FLOAT)
