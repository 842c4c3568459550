"""Small int8 policies, signed, and small environments: what the edge tests act with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import onnx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge_agent.env import Environments
from edge_agent.policy import Policy
from shoal.noise import noise_block
from shoal.policy import (
    SIGNING_CONTEXT,
    Bundle,
    Golden,
    Manifest,
    encode_bundle,
    encode_golden,
    encode_manifest,
    sha256,
)
from shoal.spaces import Discrete, EnvSpec, observation_box, unbounded, width
from shoal.tensors import Array, encode_tensors

CARTPOLE_LIKE = EnvSpec("counting", unbounded((4,)), Discrete(2))
GOLDEN_ROWS = 16


@dataclass(frozen=True)
class Weights:
    """A graph without weights, and weights for it."""

    graph: bytes
    tensors: dict[str, Array]


class GraphWriter:
    """A policy graph in the form a learner publishes: static int8, every weight external.

    Axes and shapes are part of the graph: onnxruntime infers shapes from them.
    """

    def __init__(self, spec: EnvSpec, *, hidden: tuple[int, ...] = (8,), seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, Array] = {}
        self._inline: dict[str, Array] = {}
        self._rng = np.random.default_rng(seed)
        box = observation_box(spec)
        sizes = (width(box), *hidden, width(spec.action))
        self._node("Cast", ["observation"], "floats", to=TensorProto.FLOAT)
        self._node("Flatten", ["floats"], "features", axis=1)
        current = self._quantize("features", "in", 1 / 32, 128)
        for k in range(len(sizes) - 1):
            last = k == len(sizes) - 2
            current = self._dense(current, k, sizes[k], sizes[k + 1])
            if not last:
                self._node("Relu", [current], f"relu{k}")
                current = self._quantize(f"relu{k}", f"h{k}", 1 / 16, 0)
        self._add("gain", np.float32(1))
        self._node("Mul", [current, "gain"], "distribution")
        element = helper.np_dtype_to_tensor_dtype(box.dtype)
        action = self._sample(spec)
        rows = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "policy",
            [
                rows("observation", element, ["N", *box.shape]),
                rows("noise", TensorProto.FLOAT, ["N", width(spec.action)]),
            ],
            [
                action,
                rows("log_prob", TensorProto.FLOAT, ["N"]),
                rows("distribution", TensorProto.FLOAT, ["N", width(spec.action)]),
            ],
            initializer=[
                *(_external(name, array) for name, array in self.tensors.items()),
                *(numpy_helper.from_array(array, name) for name, array in self._inline.items()),
            ],
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        self.graph: bytes = model.SerializeToString()

    def _sample(self, spec: EnvSpec) -> onnx.ValueInfoProto:
        self._inline["axis"] = np.array([1], np.int64)
        if isinstance(spec.action, Discrete):
            self._node("Add", ["distribution", "noise"], "perturbed")
            self._node("ArgMax", ["perturbed"], "action", axis=1, keepdims=0)
            self._node("LogSoftmax", ["distribution"], "log_probs", axis=1)
            self._node("Unsqueeze", ["action", "axis"], "column")
            self._node("GatherElements", ["log_probs", "column"], "gathered", axis=1)
            self._node("Squeeze", ["gathered", "axis"], "log_prob")
            return helper.make_tensor_value_info("action", TensorProto.INT64, ["N"])
        size = width(spec.action)
        self._add("std", np.full(size, 3, np.float32))
        self._add("constant", np.float32(-size * (np.log(3) + 0.5 * np.log(2 * np.pi))))
        self._add("half", np.float32(-0.5))
        self._inline["shape"] = np.array([-1, *spec.action.shape], np.int64)
        self._node("Mul", ["noise", "std"], "scaled")
        self._node("Add", ["distribution", "scaled"], "flat")
        self._node("Reshape", ["flat", "shape"], "action")
        self._node("Mul", ["noise", "noise"], "squares")
        self._node("ReduceSum", ["squares", "axis"], "total", keepdims=0)
        self._node("Mul", ["total", "half"], "exponent")
        self._node("Add", ["exponent", "constant"], "log_prob")
        return helper.make_tensor_value_info("action", TensorProto.FLOAT, ["N", *spec.action.shape])

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


@dataclass
class Publisher:
    """A learner's publishing side: signs policies for a fleet.

    published = Publisher().publish(1)
    store.offer(published.bundle, published.fetch)
    """

    fleet: str = "pond"
    spec: EnvSpec = CARTPOLE_LIKE
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    hidden: tuple[int, ...] = (8,)

    @property
    def public_key(self) -> bytes:
        return self.key.public_key().public_bytes_raw()

    def weights(self, seed: int = 0) -> Weights:
        writer = GraphWriter(self.spec, hidden=self.hidden, seed=seed)
        return Weights(writer.graph, writer.tensors)

    def policy(self, version: int = 1, seed: int = 0, **tensors: Array | np.generic) -> Policy:
        """A loaded policy, straight past every check."""
        weights = self.weights(seed)
        merged = {
            **weights.tensors,
            **{name: np.asarray(value) for name, value in tensors.items()},
        }
        return Policy.load(weights.graph, merged, self._manifest(version, weights.graph, merged))

    def publish(
        self,
        version: int,
        *,
        weights: Weights | None = None,
        golden: Golden | None = None,
        **changes: str | bytes,
    ) -> Published:
        """A signed bundle; `changes` replace fields of the manifest before it is signed."""
        weights = weights or self.weights(seed=version)
        manifest = self._manifest(version, weights.graph, weights.tensors)
        if golden is None:
            golden = self.golden(Policy.load(weights.graph, weights.tensors, manifest))
        encoded = encode_golden(golden)
        manifest = replace(manifest, golden_digest=sha256(encoded), **changes)  # type: ignore[arg-type]
        signed = encode_manifest(manifest)
        bundle = Bundle(
            manifest=signed,
            signature=self.key.sign(SIGNING_CONTEXT + signed),
            tensors=encode_tensors(weights.tensors),
            golden=encoded,
        )
        return Published(manifest, bundle, weights.graph)

    def golden(self, policy: Policy) -> Golden:
        box = observation_box(self.spec)
        rng = np.random.default_rng(policy.version)
        observations = rng.normal(size=(GOLDEN_ROWS, *box.shape)).astype(box.dtype)
        noise = noise_block(bytes(16), 0, 1, GOLDEN_ROWS, self.spec.action)[0]
        decided = policy.act(observations, noise)
        return Golden(observations, noise, decided.actions, decided.log_probs)

    def _manifest(self, version: int, graph: bytes, tensors: dict[str, Array]) -> Manifest:
        encoded = encode_tensors(tensors)
        return Manifest(
            fleet=self.fleet,
            version=version,
            updates=version * 10,
            graph_digest=sha256(graph),
            graph_bytes=len(graph),
            tensors_digest=sha256(encoded),
            tensors_bytes=len(encoded),
            golden_digest=bytes(32),
            spec_fingerprint=self.spec.fingerprint,
            precision="int8",
            created_unix_ms=0,
            kl_quantization=0.0,
            reason="publish",
        )


@dataclass
class Published:
    """One signed version, and the graph it names; counts how often the graph was fetched."""

    manifest: Manifest
    parts: Bundle
    graph: bytes
    fetches: int = 0

    @property
    def bundle(self) -> bytes:
        return encode_bundle(self.parts)

    def fetch(self, digest: bytes) -> bytes:
        assert digest == self.manifest.graph_digest
        self.fetches += 1
        return self.graph


class Counting(gymnasium.Env[Any, Any]):
    """Episodes of a fixed length whose observations say what they are.

    An observation is `[episode, t, 10 * episode + t, 0]`, in an array that is reused. Keeps every
    action it was given.
    """

    def __init__(
        self,
        length: int = 3,
        *,
        truncates: bool = False,
        reward: float = 1.0,
        action_space: gymnasium.Space[Any] | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2) if action_space is None else action_space
        self.episode = -1
        self.t = 0
        self.steps = 0
        self.closed = False
        self.seeds: list[int | None] = []
        self.taken: list[Any] = []
        self._length, self._truncates, self._reward = length, truncates, reward
        self._on_step = on_step
        self._observation: NDArray[np.float32] = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.episode += 1
        self.t = 0
        return self._observe(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.t < self._length, "stepped after the end"
        if self._on_step is not None:
            self._on_step()
        self.taken.append(action)
        self.steps += 1
        self.t += 1
        over = self.t == self._length
        ends = (over and not self._truncates, over and self._truncates)
        return self._observe(), self._reward, *ends, {}

    def close(self) -> None:
        self.closed = True

    def _observe(self) -> NDArray[np.float32]:
        self._observation[:] = (self.episode, self.t, 10 * self.episode + self.t, 0)
        return self._observation


def counting(*copies: Counting) -> Environments:
    return Environments("counting", list(copies), seed=0)


@pytest.fixture
def publisher() -> Publisher:
    """A fleet's own publisher."""
    return Publisher()


@pytest.fixture
def foreign() -> Publisher:
    """Somebody else's, for the same fleet's name and spaces."""
    return Publisher()


@pytest.fixture
def make_publisher() -> type[Publisher]:
    """Publishers for other spaces."""
    return Publisher


@pytest.fixture
def make_copy() -> type[Counting]:
    """Environments whose episodes are known."""
    return Counting


@pytest.fixture
def make_environments() -> Callable[..., Environments]:
    """Those together."""
    return counting
