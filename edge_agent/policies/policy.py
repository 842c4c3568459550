"""A policy on the device: a graph and its tensors in one onnxruntime session.

Sampling and the log-probability are part of the graph; noise comes in from outside, so an action is
a function of observation, noise and policy version alone, equal on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge_agent.environments.rows import leaf_view
from shoal.dynamic_twin import dynamic_twin
from shoal.errors import PolicyRejected
from shoal.float_twin import decode_reads, float_tensors
from shoal.layout import ObservationLayout
from shoal.policy import (
    ACTION,
    DISTRIBUTION,
    LOG_PROB,
    NEXT_STATE,
    NOISE,
    OBSERVATION,
    STATE,
    Manifest,
)
from shoal.tensors import Array

_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(uint16)": "uint16",
    "tensor(int16)": "int16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}
_ERRORS_ONLY = 3
_WORTH_OPTIMISING: Final = (b"Conv", b"MatMul", b"\x04Gemm")
"""What onnxruntime's optimiser makes faster in int8 graphs, as they name it. One of quantized dense
layers acts as fast without, bit for bit, and is built in 0.2 ms less."""
_FEW = 32


@dataclass(frozen=True, slots=True)
class Port:
    """Type of one input or output of a policy graph.

    Attributes:
        dtype: numpy name of the elements.
        shape: without the leading N.
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Actions:
    """What a policy decided for N observations.

    Attributes:
        actions: `[N, *shape]` as their `ActionLayout` has it, raw: not clipped.
        log_probs: float32 `[N]`, of those actions under the graph that sampled them.
        next_states: float32 `[N, S]`, what it remembers; None without memory.
    """

    actions: Array
    log_probs: NDArray[np.float32]
    next_states: NDArray[np.float32] | None = None


class Policy:
    """One policy version, loaded.

    policy = Policy.load(graph, tensors, manifest, ObservationLayout.of(spec.observation))
    decided = policy.act(observations, noise)

    Attributes:
        manifest: Of the version; its twins have the same.
        digest: Of what was really loaded: the published policy, or a twin of it.
        precision: Likewise.
        layout: How observations lie; None: as the graph's one input takes them.
        ports: Of the graph, by name.
        tensors: Every initializer, by name; nobody changes them.
        initializers: The same, as onnxruntime has them.
        memory: S, the numbers it remembers of each environment from step to step; 0: none.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        manifest: Manifest,
        initializers: Mapping[str, onnxruntime.OrtValue],
        layout: ObservationLayout | None,
        tensors: Mapping[str, Array],
        ports: Mapping[str, Port],
    ) -> None:
        """Wraps a built session; use `load`."""
        self.manifest = manifest
        self.version: int = manifest.version
        self.digest: bytes = manifest.digest
        self.precision: str = manifest.precision
        self.layout = layout
        self.ports = ports
        self.memory: int = self.ports[STATE].shape[0] if STATE in self.ports else 0
        self.session = session
        self.tensors = tensors
        self.initializers = initializers  # the session may read their memory as long as it lives

    @classmethod
    def load(
        cls,
        graph: bytes,
        tensors: Mapping[str, Array],
        manifest: Manifest,
        layout: ObservationLayout | None = None,
        *,
        like: Policy | None = None,
    ) -> Self:
        """Build the session.

        Args:
            graph: the weightless ONNX graph.
            tensors: every initializer the graph leaves out, scalars too.
            manifest: what the bundle says of it.
            layout: how the observations lie that it will be given; needed where they are packed.
            like: a policy that may have the same graph, whose ports are known then, and some of
                these very arrays: what wraps them is shared.

        Raises:
            PolicyRejected: reason "graph": graph and tensors do not fit together.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        options.use_deterministic_compute = True
        if manifest.precision == "int8" and not any(name in graph for name in _WORTH_OPTIMISING):
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        arrays = {name: _lasting(array) for name, array in tensors.items()}
        values = {name: _wrapped(name, array, like) for name, array in arrays.items()}
        try:
            if values:
                options.add_external_initializers(list(values), list(values.values()))
            session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        # onnxruntime raises RuntimeError, ValueError and classes of its own without a shared base.
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            raise PolicyRejected(
                "graph", f"policy version {manifest.version} does not load: {first_line}"
            ) from error
        if like is not None and like.manifest.graph_digest == manifest.graph_digest:
            ports = like.ports
        else:
            _check_names(session, manifest, layout)
            ports = _ports(session)
        return cls(session, manifest, values, layout, arrays, ports)

    def twin(self, float_graph: bytes, tensors: Mapping[str, Array]) -> Policy:
        """Its float twin, loaded; nothing of it is proven yet.

        Args:
            float_graph: The weightless graph that the manifest names.
            tensors: Of this policy.

        Raises:
            PolicyRejected: With the reason `float_twin` or `graph`.
        """
        made = self._float_tensors(tensors)
        twin = Policy.load(float_graph, made, self.manifest, self.layout)
        twin.digest, twin.precision = self.manifest.twin_digest, "fp32"
        return twin

    def dynamic_twin(self, float_graph: bytes, tensors: Mapping[str, Array]) -> Policy:
        """Its dynamic twin, loaded; nothing of it is proven yet.

        Args:
            float_graph: The weightless graph that the manifest names.
            tensors: Of this policy.

        Raises:
            PolicyRejected: With the reason `float_twin` or `graph`.
            ShoalError: The graph is no ONNX model.
        """
        model = dynamic_twin(float_graph, self._float_tensors(tensors))
        twin = Policy.load(model, {}, self.manifest, self.layout)
        twin.digest, twin.precision = self.manifest.dynamic_twin_digest, "int8_dynamic"
        return twin

    def _float_tensors(self, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        return float_tensors(
            tensors, decode_reads(self.session.get_modelmeta().custom_metadata_map)
        )

    def act(
        self,
        observations: Array,
        noise: NDArray[np.float32],
        states: NDArray[np.float32] | None = None,
    ) -> Actions:
        """Decide once.

        Args:
            observations: `[N, *shape]` as their `ObservationLayout` has it.
            noise: float32 `[N, width]`.
            states: float32 `[N, S]` for a policy with memory.
        """
        feed: dict[str, Array] = {NOISE: noise}
        if self.layout is None:
            feed[OBSERVATION] = observations
        else:
            leaves = self.layout.unpack(observations)
            feed |= {f.input_name(OBSERVATION): leaves[f.path] for f in self.layout.fields}
        if states is not None:
            feed[STATE] = states
        names = [ACTION, LOG_PROB, *([NEXT_STATE] if self.memory else [])]
        return Actions(*self.session.run(names, feed))

    def asks_as(self, other: Policy) -> bool:
        """Whether it has the very ports of another, and reports what that one does."""
        same = self.manifest.priority_gamma == other.manifest.priority_gamma
        return same and self.ports is other.ports

    def bind(self, observation: Array) -> Binding:
        """Ties the policy to arrays that stay the same: what the control loop uses.

        Args:
            observation: `[N, *shape]`, C order, as its `ObservationLayout` has it; read at each
                run.

        Raises:
            PolicyRejected: With the reason `graph`: the graph takes other observations.
        """
        return Binding(self, observation)


def _lasting(array: Array) -> Array:
    """An array that nobody changes, laid out as sessions read it: a copy only where it must be."""
    if array.flags.aligned and array.flags.c_contiguous and not array.flags.writeable:
        return array
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


def _wrapped(name: str, array: Array, like: Policy | None) -> onnxruntime.OrtValue:
    """An array as onnxruntime has it, in the array's memory."""
    if like is not None and like.tensors.get(name) is array:
        return like.initializers[name]
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _ports(session: onnxruntime.InferenceSession) -> dict[str, Port]:
    return {
        port.name: Port(_DTYPES.get(port.type, port.type), tuple(port.shape[1:]))
        for port in (*session.get_inputs(), *session.get_outputs())
    }


def _check_names(
    session: onnxruntime.InferenceSession, manifest: Manifest, layout: ObservationLayout | None
) -> None:
    inputs = {port.name for port in session.get_inputs()}
    outputs = {port.name for port in session.get_outputs()}
    leaves = (
        [OBSERVATION]
        if layout is None
        else [field.input_name(OBSERVATION) for field in layout.fields]
    )
    wanted, gives = [*leaves, NOISE], [ACTION, LOG_PROB]
    if {STATE, NEXT_STATE} & (inputs | outputs):
        wanted.append(STATE)
        gives.append(NEXT_STATE)
    if inputs != set(wanted) or not outputs.issuperset(gives):
        raise PolicyRejected(
            "graph",
            f"the graph of policy version {manifest.version} takes {sorted(inputs)} and gives"
            f" {sorted(outputs)}: it must take {wanted} and give {gives}",
        )
    state = {port.name: port.shape for port in session.get_inputs()}.get(STATE, [0, 1])
    if len(state) != len("NS") or not isinstance(state[1], int) or state[1] < 1:
        raise PolicyRejected(
            "graph",
            f"the graph of policy version {manifest.version} takes a state {state}: it must be"
            " [N, S], with a number for S",
        )


class Binding:
    """A policy tied to fixed arrays, for one thread at a time.

    binding = policy.bind(observations)
    binding.noise[...] = noise
    binding.run()
    environments.step(binding.action)

    Spares onnxruntime's Python layer the conversions (measured: 19 to 12 µs at N = 1).

    Attributes:
        state: float32 `[N, S]`, what the policy remembers: zeros at the start of an episode. A run
            reads it and leaves it as it is.
        next_state: float32 `[N, S]`, written by a run.
        values: float32 `[N, n]`, Q-values, written by a run; None where none are reported.
    """

    def __init__(self, policy: Policy, observation: Array) -> None:
        """Allocates the other arrays and binds all; use `Policy.bind`."""
        ports, session = policy.ports, policy.session
        envs = observation.shape[0]
        inputs, self._copies = _leaves(policy, observation)
        for name, array in inputs.items():
            given = Port(array.dtype.name, array.shape[1:])
            if given != ports[name] or not array.flags.c_contiguous:
                raise PolicyRejected(
                    "graph",
                    f"policy {policy.version} takes {name} as {ports[name]}, not {given}",
                )
        self.noise: NDArray[np.float32] = np.zeros((envs, *ports[NOISE].shape), np.float32)
        self.state: NDArray[np.float32] = np.zeros((envs, policy.memory), np.float32)
        self.next_state = np.zeros_like(self.state)
        self.action: Array = _array(ports[ACTION], envs)
        self.log_prob: NDArray[np.float32] = np.zeros(envs, np.float32)
        self.values: NDArray[np.float32] | None = None
        inputs[NOISE] = self.noise
        outputs: dict[str, Array] = {ACTION: self.action, LOG_PROB: self.log_prob}
        if policy.memory:
            inputs[STATE], outputs[NEXT_STATE] = self.state, self.next_state
        if policy.manifest.priority_gamma > 0 and DISTRIBUTION in ports:
            self.values = outputs[DISTRIBUTION] = _array(ports[DISTRIBUTION], envs)
        self._floats = [array.reshape(-1) for array in outputs.values() if array.dtype.kind == "f"]
        self._policy = policy  # its memory is in use
        self._inputs = inputs  # likewise
        self._session = session
        self._io = session.io_binding()
        for name, array in inputs.items():
            self._io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            self._io.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(self) -> None:
        """Decide for what the arrays hold now."""
        for target, source in self._copies:
            target[...] = source
        self._session.run_with_iobinding(self._io)

    def finite(self) -> bool:
        """Whether every number of the last run is finite."""
        for floats in self._floats:
            if floats.size <= _FEW:  # where numpy's call costs more than the work
                if not all(map(math.isfinite, floats.tolist())):
                    return False
            elif not np.isfinite(floats).all():
                return False
        return True


def _leaves(
    policy: Policy, observation: Array
) -> tuple[dict[str, Array], Sequence[tuple[Array, Array]]]:
    """What each observation input reads, and what to copy there from packed rows before a run."""
    layout = policy.layout
    if layout is None or not layout.packed:
        return {OBSERVATION: observation}, ()
    if observation.shape[1:] != layout.shape or observation.dtype != layout.dtype:
        raise PolicyRejected(
            "graph",
            f"policy {policy.version} takes packed rows {layout.shape}, not"
            f" {observation.dtype}{list(observation.shape[1:])}",
        )
    sources = {f.input_name(OBSERVATION): leaf_view(layout, f, observation) for f in layout.fields}
    inputs = {name: np.zeros(source.shape, source.dtype) for name, source in sources.items()}
    return inputs, [(inputs[name], source) for name, source in sources.items()]


def _array(port: Port, envs: int) -> Array:
    return np.zeros((envs, *port.shape), np.dtype(port.dtype))
