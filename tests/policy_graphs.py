"""Policy graphs in the form a learner publishes, written node by node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from shoal.layout import ActionLayout, ObservationLayout
from shoal.spaces import EnvSpec
from shoal.tensors import Array


@dataclass(frozen=True)
class Weights:
    """A graph without weights, and weights for it."""

    graph: bytes
    tensors: dict[str, Array]


class GraphWriter:
    """A policy graph in the form a learner publishes: static int8, every weight external.

    Axes and shapes are part of the graph: onnxruntime infers shapes from them.
    """

    def __init__(
        self, spec: EnvSpec, *, hidden: tuple[int, ...] = (8,), seed: int = 0, memory: int = 0
    ) -> None:
        """A policy with memory counts: the next state is half the state, plus one."""
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, Array] = {}
        self._inline: dict[str, Array] = {}
        self._rng = np.random.default_rng(seed)
        self._noise = ActionLayout.of(spec.action).noise_width
        rows, f32 = helper.make_tensor_value_info, TensorProto.FLOAT
        inputs, width = self._features(spec, memory)
        sizes = (width, *hidden, self._noise)
        current = self._quantize("features", "in", 1 / 32, 128)
        for k in range(len(sizes) - 1):
            last = k == len(sizes) - 2
            current = self._dense(current, k, sizes[k], sizes[k + 1])
            if not last:
                self._node("Relu", [current], f"relu{k}")
                current = self._quantize(f"relu{k}", f"h{k}", 1 / 16, 0)
        self._add("gain", np.float32(1))
        self._node("Mul", [current, "gain"], "distribution")
        inputs.append(rows("noise", f32, ["N", self._noise]))
        outputs = [
            self._sample(ActionLayout.of(spec.action)),
            rows("log_prob", f32, ["N"]),
            rows("distribution", f32, ["N", self._noise]),
        ]
        if memory:
            inputs.append(rows("state", f32, ["N", memory]))
            outputs.append(rows("next_state", f32, ["N", memory]))
        graph = helper.make_graph(
            self.nodes,
            "policy",
            inputs,
            outputs,
            initializer=[
                *(_external(name, array) for name, array in self.tensors.items()),
                *(numpy_helper.from_array(array, name) for name, array in self._inline.items()),
            ],
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        self.graph: bytes = model.SerializeToString()

    def _features(self, spec: EnvSpec, memory: int) -> tuple[list[onnx.ValueInfoProto], int]:
        """One input for each leaf, all their numbers side by side, and how many these are."""
        inputs, flat, width = [], [], memory
        for k, leaf in enumerate(ObservationLayout.of(spec.observation).fields):
            name, element = leaf.input_name("observation"), leaf.dtype
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(element))
            inputs.append(helper.make_tensor_value_info(name, kind, ["N", *leaf.shape]))
            size = int(np.prod(leaf.shape))
            self._inline[f"flat{k}_shape"] = np.array([-1, size], np.int64)
            self._node("Cast", [name], f"floats{k}", to=TensorProto.FLOAT)
            self._node("Reshape", [f"floats{k}", f"flat{k}_shape"], f"flat{k}")
            flat.append(f"flat{k}")
            width += size
        if memory:
            flat.append("state")
            self._inline["a_half"] = np.array(0.5, np.float32)
            self._add("a_whole", np.float32(1))
            self._node("Mul", ["state", "a_half"], "halved")
            self._node("Add", ["halved", "a_whole"], "next_state")
        self._node("Concat", flat, "features", axis=1)
        return inputs, width

    def _sample(self, layout: ActionLayout) -> onnx.ValueInfoProto:
        """Each discrete element by its largest perturbed logit, each Box with deviation 3."""
        widths: list[int] = []
        for choice in layout.choices:
            widths += choice.values or [choice.size]
        self._inline["axis"] = np.array([1], np.int64)
        self._inline["widths"] = np.array(widths, np.int64)
        names = {
            name: [f"{name}{k}" for k in range(len(widths))]
            for name in ("distribution", "noise", "number", "part")
        }
        for name in ("distribution", "noise"):
            node = helper.make_node("Split", [name, "widths"], names[name], axis=1)
            self.nodes.append(node)
        k = 0
        for choice in layout.choices:
            for _ in choice.values:
                self._pick(k, layout)
                k += 1
            if not choice.values:
                self._shift(k, choice.size)
                k += 1
        self._inline["action_shape"] = np.array([-1, *layout.shape], np.int64)
        self._node("Concat", names["number"], "numbers", axis=1)
        self._node("Reshape", ["numbers", "action_shape"], "action")
        self._node("Concat", names["part"], "parts", axis=1)
        self._node("ReduceSum", ["parts", "axis"], "log_prob", keepdims=0)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(layout.dtype))
        return helper.make_tensor_value_info("action", kind, ["N", *layout.shape])

    def _pick(self, k: int, layout: ActionLayout) -> None:
        self._node("Add", [f"distribution{k}", f"noise{k}"], f"perturbed{k}")
        self._node("ArgMax", [f"perturbed{k}"], f"picked{k}", axis=1, keepdims=1)
        self._node("LogSoftmax", [f"distribution{k}"], f"log_probs{k}", axis=1)
        self._node("GatherElements", [f"log_probs{k}", f"picked{k}"], f"part{k}", axis=1)
        kind = TensorProto.INT64 if layout.discrete else TensorProto.FLOAT
        self._node("Cast", [f"picked{k}"], f"number{k}", to=kind)

    def _shift(self, k: int, size: int) -> None:
        self._add("std", np.float32(3))
        self._add("half", np.float32(-0.5))
        self._add(f"constant{k}", np.float32(-size * (np.log(3) + 0.5 * np.log(2 * np.pi))))
        self._node("Mul", [f"noise{k}", "std"], f"scaled{k}")
        self._node("Add", [f"distribution{k}", f"scaled{k}"], f"number{k}")
        self._node("Mul", [f"noise{k}", f"noise{k}"], f"squares{k}")
        self._node("ReduceSum", [f"squares{k}", "axis"], f"total{k}", keepdims=1)
        self._node("Mul", [f"total{k}", "half"], f"exponent{k}")
        self._node("Add", [f"exponent{k}", f"constant{k}"], f"part{k}")

    def _dense(self, quantized: str, k: int, fan_in: int, fan_out: int) -> str:
        weights = self._rng.integers(-127, 128, (fan_in, fan_out)).astype(np.int8)
        self._add(f"w{k}", weights)
        self._add(f"w{k}_scale", np.full(fan_out, 0.5 / 127 / np.sqrt(fan_in), np.float32))
        self._add(f"w{k}_zero", np.zeros(fan_out, np.int8))
        self._add(f"b{k}", self._rng.normal(size=fan_out).astype(np.float32))
        self._node("DequantizeLinear", [f"w{k}", f"w{k}_scale", f"w{k}_zero"], f"dw{k}", axis=1)
        self._node("Gemm", [quantized, f"dw{k}", f"b{k}"], f"dense{k}")
        return f"dense{k}"

    def _quantize(self, name: str, label: str, scale: float, zero: int) -> str:
        self._add(f"{label}_scale", np.float32(scale))
        self._add(f"{label}_zero", np.uint8(zero))
        ends = [f"{label}_scale", f"{label}_zero"]
        self._node("QuantizeLinear", [name, *ends], f"{label}_q")
        self._node("DequantizeLinear", [f"{label}_q", *ends], f"{label}_dq")
        return f"{label}_dq"

    def _add(self, name: str, value: Array | np.generic) -> None:
        self.tensors[name] = np.asarray(value)

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: int) -> None:
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))  # type: ignore[arg-type]


def _external(name: str, array: Array) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(array, name)
    size = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "tensors"), ("offset", "0"), ("length", str(size))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor
