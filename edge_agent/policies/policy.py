"""A policy on the device: a graph and its tensors in an onnxruntime session.

Sampling and the log-probability are part of the graph; noise comes in from outside, so an action is
a function of observation, noise and policy version alone, equal on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge_agent.policies.ports import Port, check_names, ports_of
from edge_agent.policies.session import Session
from shoal.dynamic_twin import dynamic_twin
from shoal.errors import PolicyRejected
from shoal.float_twin import decode_reads, float_tensors
from shoal.layout import ObservationLayout
from shoal.logs import get_logger
from shoal.policy import ACTION, LOG_PROB, NEXT_STATE, NOISE, OBSERVATION, STATE, Golden, Manifest
from shoal.tensors import Array

log = get_logger("policy")


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

    def same_as(self, other: Actions) -> bool:
        """Whether they are the very same, bit for bit."""
        pairs = (
            (self.actions, other.actions),
            (self.log_probs, other.log_probs),
            (self.next_states, other.next_states),
        )
        return all(
            ours is theirs
            if ours is None or theirs is None
            else (ours.dtype, ours.shape, ours.tobytes())
            == (theirs.dtype, theirs.shape, theirs.tobytes())
            for ours, theirs in pairs
        )


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
        session: What runs it. Replaced by one that decides alike, and faster, once that is built.
        feedable: A session of its graph that takes the weights of any version; None: there is none.
    """

    def __init__(
        self,
        session: Session,
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
        self.feedable: Session | None = None
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
        fed: bool = False,
    ) -> Self:
        """Finds the session, or builds one.

        Args:
            graph: the weightless ONNX graph.
            tensors: every initializer the graph leaves out, scalars too.
            manifest: what the bundle says of it.
            layout: how the observations lie that it will be given; needed where they are packed.
            like: a policy that may have the same graph, whose ports are known then, and some of
                these very arrays: what wraps them is shared.
            fed: whether to feed the session that `like` has for that, if it can be, and build none.

        Raises:
            PolicyRejected: reason "graph": graph and tensors do not fit together.
        """
        arrays = {name: _lasting(array) for name, array in tensors.items()}
        values = {name: _wrapped(name, array, like) for name, array in arrays.items()}
        if like is not None and like.manifest.graph_digest != manifest.graph_digest:
            like = None
        session = like.feed(arrays, values) if fed and like is not None else None
        session = session or build(graph, values, manifest)
        if like is None:
            check_names(session.runtime, manifest, layout)
        ports = ports_of(session.runtime) if like is None else like.ports
        policy = cls(session, manifest, values, layout, arrays, ports)
        policy.feedable = None if like is None else like.feedable
        return policy

    def feed(
        self, tensors: Mapping[str, Array], values: Mapping[str, onnxruntime.OrtValue]
    ) -> Session | None:
        """The session that takes any weights with these; None: there is none, or they do not fit.

        Args:
            tensors: Of a policy with the same graph.
            values: The same, as onnxruntime has them.
        """
        own = self.tensors
        fit = tensors.keys() == own.keys() and all(
            (array.dtype, array.shape) == (own[name].dtype, own[name].shape)
            for name, array in tensors.items()
        )
        return self.feedable.feeding(values) if fit and self.feedable is not None else None

    def running(self, session: Session) -> Policy:
        """The same by another session, of which nothing is proven yet."""
        given = (self.manifest, self.initializers, self.layout, self.tensors, self.ports)
        return Policy(session, *given)

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
        reads = decode_reads(self.session.runtime.get_modelmeta().custom_metadata_map)
        return float_tensors(tensors, reads)

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
        feed: dict[str, Array | onnxruntime.OrtValue] = {NOISE: noise, **self.session.fed}
        if self.layout is None:
            feed[OBSERVATION] = observations
        else:
            leaves = self.layout.unpack(observations)
            feed |= {f.input_name(OBSERVATION): leaves[f.path] for f in self.layout.fields}
        if states is not None:
            feed[STATE] = states
        names = [ACTION, LOG_PROB, *([NEXT_STATE] if self.memory else [])]
        return Actions(*self.session.runtime.run(names, feed))

    def asks_as(self, other: Policy) -> bool:
        """Whether it has the very ports of another, and reports what that one does."""
        same = self.manifest.priority_gamma == other.manifest.priority_gamma
        return same and self.ports is other.ports


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


def build(graph: bytes, values: Mapping[str, onnxruntime.OrtValue], manifest: Manifest) -> Session:
    """A session with a policy's weights inside.

    Raises:
        PolicyRejected: With the reason `graph`.
    """
    try:
        return Session.build(graph, values, precision=manifest.precision)
    # onnxruntime raises RuntimeError, ValueError and classes of its own without a shared base.
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise PolicyRejected(
            "graph", f"policy version {manifest.version} does not load: {first_line}"
        ) from error


def open_for(policy: Policy, graph: bytes, golden: Golden) -> Session | None:
    """A session that takes the weights of any version; None where one will not do.

    Args:
        policy: Of that graph, its weights inside its session.
        graph: The weightless ONNX graph.
        golden: On these rows it must decide as the policy does, bit for bit.
    """
    try:
        fed = Session.open(graph, policy.initializers, precision=policy.manifest.precision)
        if fed is None:
            return None
        ours, theirs = (
            each.act(golden.observations, golden.noise, golden.states)
            for each in (policy, policy.running(fed))
        )
    except Exception as error:  # noqa: BLE001 a border: versions are built one by one then
        log.warning("graph_takes_no_weights", version=policy.version, error=type(error).__name__)
        return None
    return fed if ours.same_as(theirs) else None
