"""The dynamic twin of a policy: int8 with ranges found at every run, made of its fp32 graph.

A device makes it itself, as it does a float twin (`shoal.float_twin`), and nothing of it travels.
The arithmetic is that of `onnxruntime.quantization.quantize_dynamic` (weights s8, a scale for each
tensor, 7 bits as elsewhere): `DynamicQuantizeLinear`, an integer product, one float32 multiply and
the bias. That function needs the onnx package, which no device has; this needs numpy, one operation
at a time on each element, so that integers and scales are equal on every machine.

A range is found over all rows of a run: what is decided for one depends a little on the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from shoal.errors import ShoalError
from shoal.tensors import Array
from shoal.v1.onnx_pb2 import OnnxAttribute, OnnxModel, OnnxNode, OnnxTensor

_DTYPES: Final[Mapping[int, str]] = {
    1: "<f4",
    2: "u1",
    3: "i1",
    6: "<i4",
    7: "<i8",
    9: "?",
    10: "<f2",
    11: "<f8",
}
_CODES: Final = {np.dtype(name): code for code, name in _DTYPES.items()}
_FLOAT: Final = 1
_INTEGER_ATTRIBUTE: Final = 2
_HALF_RANGE: Final = 64  # units of the largest weight, in 7 bits
_PRODUCTS: Final[Mapping[str, str]] = {
    "Gemm": "MatMulInteger",
    "MatMul": "MatMulInteger",
    "Conv": "ConvInteger",
}


def read_tensors(model: bytes) -> dict[str, Array]:
    """The initializers of a model that has its weights inside, by name.

    Raises:
        ShoalError: It is no ONNX model, or keeps its weights elsewhere.
    """
    tensors = {}
    for each in _decoded(model).graph.initializer:
        dtype = _DTYPES.get(each.data_type)
        shape = tuple(each.dims)
        size = None if dtype is None else np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))
        if dtype is None or each.data_location or len(each.raw_data) != size:
            raise ShoalError(
                f"the weights {each.name} are not inside as `shoal learner export` writes them"
            )
        tensors[each.name] = np.frombuffer(each.raw_data, dtype).reshape(shape)
    return tensors


def dynamic_twin(graph: bytes, tensors: Mapping[str, Array]) -> bytes:
    """A model with dynamic ranges, its weights inside.

    Args:
        graph: In fp32, with its weights or without.
        tensors: Every initializer of it.

    Raises:
        ShoalError: It is no ONNX model.
    """
    model = _decoded(graph)
    nodes = list(model.graph.node)
    del model.graph.node[:], model.graph.initializer[:]
    held = dict(tensors)
    for node in nodes:
        weight = held.get(node.input[1]) if len(node.input) > 1 else None
        if node.op_type in _PRODUCTS and weight is not None and weight.dtype == np.float32:
            model.graph.node.extend(_integer_nodes(node, weight, held))
        else:
            model.graph.node.append(node)
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(_tensor(n, held[n]) for n in held if n in read)
    return model.SerializeToString()


def _integer_nodes(node: OnnxNode, weight: Array, held: dict[str, Array]) -> list[OnnxNode]:
    """What stands for one product; adds the tensors that it reads to `held`."""
    given, name, out = node.input[0], node.input[1], node.output[0]
    largest = float(np.abs(weight).max(initial=0.0))
    scale = np.float32(largest / _HALF_RANGE if largest > 0.0 else 1.0)
    units = np.clip(np.rint(weight / scale), -_HALF_RANGE, _HALF_RANGE)
    held[f"{name}.dynamic"] = units.astype(np.int8)
    held[f"{name}.dynamic.scale"] = np.array(scale, np.float32)
    held[f"{name}.dynamic.zero"] = np.array(0, np.int8)
    step = [f"{out}.{part}" for part in ("u8", "scale", "zero", "sum", "float", "both")]
    units_in, scale_in, zero_in, total, floated, both = step
    product = OnnxNode(
        op_type=_PRODUCTS[node.op_type],
        input=[units_in, f"{name}.dynamic", zero_in, f"{name}.dynamic.zero"],
        output=[total],
        attribute=node.attribute if node.op_type == "Conv" else (),
    )
    bias = node.input[2] if len(node.input) > 2 else ""  # noqa: PLR2004 - as ONNX has them
    scaled = f"{out}.scaled" if bias else out
    nodes = [
        OnnxNode(op_type="DynamicQuantizeLinear", input=[given], output=step[:3]),
        product,
        OnnxNode(
            op_type="Cast",
            input=[total],
            output=[floated],
            attribute=[OnnxAttribute(name="to", i=_FLOAT, type=_INTEGER_ATTRIBUTE)],
        ),
        OnnxNode(op_type="Mul", input=[scale_in, f"{name}.dynamic.scale"], output=[both]),
        OnnxNode(op_type="Mul", input=[floated, both], output=[scaled]),
    ]
    if bias:
        column = bias
        if node.op_type == "Conv":
            column = f"{bias}.dynamic"
            held[column] = held[bias].reshape(1, -1, *[1] * (weight.ndim - 2))
        nodes.append(OnnxNode(op_type="Add", input=[scaled, column], output=[out]))
    return nodes


def _tensor(name: str, array: Array) -> OnnxTensor:
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    return OnnxTensor(
        name=name, dims=array.shape, data_type=_CODES[plain.dtype], raw_data=plain.tobytes()
    )


def _decoded(model: bytes) -> OnnxModel:
    try:
        return OnnxModel.FromString(model)
    except DecodeError as error:
        raise ShoalError("it is no ONNX model: give a file of `shoal learner export`") from error
