"""Samples of `onnx.proto`, for `samples.py`: its numbers are those of ONNX, for ever."""

from __future__ import annotations

from google.protobuf.message import Message

from shoal.v1 import onnx_pb2 as pb


def onnx_samples() -> dict[str, Message]:
    """A model of one node, and each part of it."""
    entry = pb.OnnxEntry(key="location", value="tensors")
    tensor = pb.OnnxTensor(
        dims=[2, 1],
        data_type=3,
        name="weight.0",
        raw_data=b"\x01\xff",
        external_data=[entry],
        data_location=1,
    )
    attribute = pb.OnnxAttribute(name="to", i=1, type=2)
    node = pb.OnnxNode(
        input=["x"], output=["y"], op_type="Cast", attribute=[attribute], domain="com.microsoft"
    )
    dimension = pb.OnnxDimension(dim_value=2)
    shape = pb.OnnxShape(dim=[dimension])
    tensor_type = pb.OnnxTensorType(elem_type=3, shape=shape)
    value_type = pb.OnnxType(tensor_type=tensor_type)
    value = pb.OnnxValue(name="weight.0", type=value_type)
    graph = pb.OnnxGraph(node=[node], initializer=[tensor], input=[value])
    return {
        "OnnxAttribute": attribute,
        "OnnxDimension": dimension,
        "OnnxEntry": entry,
        "OnnxGraph": graph,
        "OnnxModel": pb.OnnxModel(graph=graph),
        "OnnxNode": node,
        "OnnxShape": shape,
        "OnnxTensor": tensor,
        "OnnxTensorType": tensor_type,
        "OnnxType": value_type,
        "OnnxValue": value,
    }
