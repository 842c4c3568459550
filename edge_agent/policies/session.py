"""What runs a policy's graph: a session of onnxruntime, its weights inside or fed at each run.

Weights inside are packed as the processor likes them: decisions are fast, and the next version
needs a session of its own, which takes longer to build than everything else a refresh costs. A
session that is fed its weights serves every version of its graph, and decides slower: it is for the
moments until the other is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import onnxruntime
from google.protobuf.message import DecodeError

from shoal.v1.onnx_pb2 import (
    OnnxDimension,
    OnnxModel,
    OnnxShape,
    OnnxTensorType,
    OnnxType,
    OnnxValue,
)

_ERRORS_ONLY: Final = 3
_WORTH_OPTIMISING: Final = (b"Conv", b"MatMul", b"\x04Gemm")
"""What onnxruntime's optimiser makes faster in int8 graphs, as they name it. One of quantized dense
layers acts as fast without, bit for bit, and is built in 0.2 ms less."""
_ELSEWHERE: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A graph that can be run.

    session = Session.build(graph, values, precision="int8")

    Attributes:
        runtime: onnxruntime's.
        fed: What is an input of it and belongs to the policy, by name; empty: the weights are
            inside.
    """

    runtime: onnxruntime.InferenceSession
    fed: Mapping[str, onnxruntime.OrtValue]

    @classmethod
    def build(
        cls, graph: bytes, values: Mapping[str, onnxruntime.OrtValue], *, precision: str
    ) -> Session:
        """A session with the weights inside; it may read their memory as long as it lives.

        Raises:
            Exception: onnxruntime has RuntimeError, ValueError and classes of its own, without a
                shared base.
        """
        options = _options(optimise=not _is_dense_int8(graph, precision))
        if values:
            options.add_external_initializers(list(values), list(values.values()))
        return cls(_built(graph, options), {})

    @classmethod
    def open(
        cls, graph: bytes, values: Mapping[str, onnxruntime.OrtValue], *, precision: str
    ) -> Session | None:
        """A session that is fed these weights, and takes others of the same types and shapes.

        None for a graph that might decide otherwise then, or much slower: one with floats in its
        layers, or convolutions. Sums of integers are the same in any order.

        Raises:
            Exception: As `build`.
        """
        if not _is_dense_int8(graph, precision):
            return None
        try:
            model = OnnxModel.FromString(graph)
        except DecodeError:
            return None
        inside = [each for each in model.graph.initializer if each.data_location != _ELSEWHERE]
        outside = [each for each in model.graph.initializer if each.data_location == _ELSEWHERE]
        if {each.name for each in outside} != values.keys():
            return None
        del model.graph.initializer[:]
        model.graph.initializer.extend(inside)
        for each in outside:
            shape = OnnxShape(dim=[OnnxDimension(dim_value=axis) for axis in each.dims])
            kind = OnnxTensorType(elem_type=each.data_type, shape=shape)
            model.graph.input.append(OnnxValue(name=each.name, type=OnnxType(tensor_type=kind)))
        return cls(_built(model.SerializeToString(), _options(optimise=False)), values)

    def feeding(self, values: Mapping[str, onnxruntime.OrtValue]) -> Session:
        """The same with other weights."""
        return Session(self.runtime, values)


def _is_dense_int8(graph: bytes, precision: str) -> bool:
    return precision == "int8" and not any(name in graph for name in _WORTH_OPTIMISING)


def _options(*, optimise: bool) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    options.use_deterministic_compute = True
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _built(graph: bytes, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
