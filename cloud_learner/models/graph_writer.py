"""Nodes and initializers of an ONNX graph as they are added; the same calls give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

CONTRIB: Final = "com.microsoft"
_OPSET: Final = 17
_IR_VERSION: Final = 9
_PLACE: Final = "tensors"  # external data must name a place; none is ever opened
_BYTES: Final = {
    TensorProto.FLOAT: 4,
    TensorProto.INT32: 4,
    TensorProto.INT8: 1,
    TensorProto.UINT8: 1,
}
Attribute = float | str | list[int]


class GraphWriter:
    """An ONNX graph under construction.

    >>> writer = GraphWriter()
    >>> total = writer.node("Add", ["left", "right"], "total")
    >>> data = writer.serialize(inputs, outputs)
    """

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._constants: dict[bytes, str] = {}

    def node(
        self, kind: str, inputs: list[str], output: str, *, domain: str = "", **given: Attribute
    ) -> str:
        """Adds a node with one output and gives its name."""
        return self.nodes(kind, inputs, [output], domain=domain, **given)[0]

    def nodes(
        self,
        kind: str,
        inputs: list[str],
        outputs: list[str],
        *,
        domain: str = "",
        **given: Attribute,
    ) -> list[str]:
        """Adds a node with several outputs and gives their names."""
        node = helper.make_node(kind, inputs, outputs, domain=domain)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in given.items())
        self._nodes.append(node)
        return outputs

    def tensor(self, name: str, dtype: TensorProto.DataType, *shape: int) -> str:
        """An initializer whose numbers travel apart from the graph; once for each name."""
        if name in self._initializers:
            return name
        tensor = TensorProto(
            name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL
        )
        length = math.prod(shape) * _BYTES[dtype]
        for key, value in (("location", _PLACE), ("offset", "0"), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        self._initializers[name] = tensor
        return name

    def constant(self, value: NDArray[np.generic]) -> str:
        """Numbers that belong to the architecture, such as axes; equal ones are added once."""
        proto = numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape))
        key = proto.SerializeToString(deterministic=True)
        if key not in self._constants:
            name = f"constant.{len(self._constants)}"
            self._constants[key] = name
            self._nodes.append(helper.make_node("Constant", [], [name], value=proto))
        return self._constants[key]

    def whole(self, *values: int) -> str:
        """A constant of int64 `[values]`."""
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A constant of float32 `[]`."""
        return self.constant(np.array(value, np.float32))

    def columns(self, name: str, start: int, end: int, output: str) -> str:
        """Columns `[N, start:end]` of a matrix."""
        bounds = [self.whole(start), self.whole(end), self.whole(1)]
        return self.node("Slice", [name, *bounds], output)

    def split(self, name: str, widths: list[int], outputs: list[str]) -> list[str]:
        """A matrix cut into columns."""
        return self.nodes("Split", [name, self.whole(*widths)], outputs, axis=1)

    def shape(self, name: str, shape: tuple[int, ...], output: str) -> str:
        """Rows `[N, *shape]`."""
        return self.node("Reshape", [name, self.whole(-1, *shape)], output)

    def serialize(
        self,
        inputs: list[ValueInfoProto],
        outputs: list[ValueInfoProto],
        metadata: Mapping[str, str],
    ) -> bytes:
        """The model's bytes."""
        graph = helper.make_graph(
            self._nodes,
            "policy",
            inputs,
            outputs,
            initializer=list(self._initializers.values()),
        )
        model = helper.make_model(
            graph,
            producer_name="shoal",
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(CONTRIB, 1)],
        )
        for key, value in metadata.items():
            model.metadata_props.add(key=key, value=value)
        data: bytes = model.SerializeToString(deterministic=True)
        return data


def port(name: str, dtype: int, *shape: int) -> ValueInfoProto:
    """A graph input or output `[N, *shape]`."""
    return helper.make_tensor_value_info(name, dtype, ["N", *shape])
