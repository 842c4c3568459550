"""A policy on the device: an int8 graph and its tensors in one onnxruntime session.

Sampling and the log-probability are part of the graph; noise comes in from outside, so an action is
a function of observation, noise and policy version alone, equal on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from shoal.errors import PolicyRejected
from shoal.policy import ACTION, LOG_PROB, NOISE, OBSERVATION, Manifest
from shoal.tensors import Array

INPUTS = (OBSERVATION, NOISE)
OUTPUTS = (ACTION, LOG_PROB)
_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(uint16)": "uint16",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}
_ERRORS_ONLY = 3
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
        actions: int64 `[N]` or float32 `[N, *act]`, raw: not clipped.
        log_probs: float32 `[N]`, of those actions under the graph that sampled them.
    """

    actions: Array
    log_probs: NDArray[np.float32]


class Policy:
    """One policy version, loaded.

    policy = Policy.load(graph, tensors, manifest)
    decided = policy.act(observations, noise)
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        manifest: Manifest,
        initializers: Sequence[onnxruntime.OrtValue],
    ) -> None:
        """Wraps a built session; use `load`."""
        self.manifest = manifest
        self.version: int = manifest.version
        self.digest: bytes = manifest.digest
        self.ports = {
            port.name: Port(_DTYPES.get(port.type, port.type), tuple(port.shape[1:]))
            for port in (*session.get_inputs(), *session.get_outputs())
        }
        self.session = session
        self._initializers = initializers  # the session may read their memory as long as it lives

    @classmethod
    def load(cls, graph: bytes, tensors: Mapping[str, Array], manifest: Manifest) -> Self:
        """Build the session.

        Args:
            graph: the weightless ONNX graph.
            tensors: every initializer the graph leaves out, scalars too.
            manifest: what the bundle says of it.

        Raises:
            PolicyRejected: reason "graph": graph and tensors do not fit together.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        options.use_deterministic_compute = True
        # Copies, since what came off the wire may not be aligned.
        values = [
            onnxruntime.OrtValue.ortvalue_from_numpy(np.array(array, order="C"))
            for array in tensors.values()
        ]
        try:
            if values:
                options.add_external_initializers(list(tensors), values)
            session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        # onnxruntime raises RuntimeError, ValueError and classes of its own without a shared base.
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            raise PolicyRejected(
                "graph", f"policy version {manifest.version} does not load: {first_line}"
            ) from error
        have = {port.name for port in (*session.get_inputs(), *session.get_outputs())}
        missing = [name for name in (*INPUTS, *OUTPUTS) if name not in have]
        if missing or len(session.get_inputs()) != len(INPUTS):
            raise PolicyRejected(
                "graph",
                f"the graph of policy version {manifest.version} has inputs and outputs"
                f" {sorted(have)}: it must have {[*INPUTS, *OUTPUTS]}",
            )
        return cls(session, manifest, values)

    def act(self, observations: Array, noise: NDArray[np.float32]) -> Actions:
        """Decide once.

        Args:
            observations: `[N, *obs]` in the environment's dtype.
            noise: float32 `[N, width]`.
        """
        actions, log_probs = self.session.run(
            list(OUTPUTS), {OBSERVATION: observations, NOISE: noise}
        )
        return Actions(actions, log_probs)

    def bind(self, observation: Array) -> Binding:
        """Ties the policy to arrays that stay the same: what the control loop uses.

        Args:
            observation: `[N, *obs]`, C order, in the environment's dtype; read at each run.

        Raises:
            PolicyRejected: With the reason `graph`: the graph takes other observations.
        """
        return Binding(self, observation)


class Binding:
    """A policy tied to fixed arrays, for one thread at a time.

    binding = policy.bind(observations)
    binding.noise[...] = noise
    binding.run()
    environments.step(binding.action)

    Spares onnxruntime's Python layer the conversions (measured: 19 to 12 µs at N = 1).
    """

    def __init__(self, policy: Policy, observation: Array) -> None:
        """Allocates the other arrays and binds all; use `Policy.bind`."""
        ports, session = policy.ports, policy.session
        given = Port(observation.dtype.name, observation.shape[1:])
        if given != ports[OBSERVATION] or not observation.flags.c_contiguous:
            raise PolicyRejected(
                "graph",
                f"policy {policy.version} takes observations {ports[OBSERVATION]}, not {given}",
            )
        envs = observation.shape[0]
        self.observation = observation
        self.noise: NDArray[np.float32] = np.zeros((envs, *ports[NOISE].shape), np.float32)
        self.action: Array = _array(ports[ACTION], envs)
        self.log_prob: NDArray[np.float32] = np.zeros(envs, np.float32)
        self._floats = [
            array.reshape(-1) for array in (self.log_prob, self.action) if array.dtype.kind == "f"
        ]
        self._policy = policy  # its memory is in use
        self._session = session
        self._io = session.io_binding()
        for name, array in ((OBSERVATION, self.observation), (NOISE, self.noise)):
            self._io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in ((ACTION, self.action), (LOG_PROB, self.log_prob)):
            self._io.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(self) -> None:
        """Decide for what the arrays hold now."""
        self._session.run_with_iobinding(self._io)

    def finite(self) -> bool:
        """Whether every action and log-probability of the last run is a finite number."""
        for floats in self._floats:
            if floats.size <= _FEW:  # where numpy's call costs more than the work
                if not all(map(math.isfinite, floats.tolist())):
                    return False
            elif not np.isfinite(floats).all():
                return False
        return True


def _array(port: Port, envs: int) -> Array:
    return np.zeros((envs, *port.shape), np.dtype(port.dtype))
