"""How two policy versions differ: their integers, their scales, and what they decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cloud_learner.downlink.published import Published
from cloud_learner.quantization.session import feeds, open_session
from edge_agent.policies.parity import alike
from edge_agent.precisions.comparison import divergence
from shoal.layout import ActionLayout, ObservationLayout
from shoal.policy import ACTION, DISTRIBUTION, Bundle, Golden, decode_bundle, decode_golden
from shoal.policy_delta import PolicyDelta, compress_policy_delta
from shoal.spaces import EnvSpec
from shoal.streams import LeaveRaw
from shoal.tensors import Array, decode_tensors

EXPLORES = "explore.threshold"
"""A tensor that only epsilon-greedy policies have: their distribution holds Q-values."""


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One tensor that both have.

    Attributes:
        numbers: How many it holds.
        changed: Part of them that differ, 0 to 1.
        largest: Change: in units of an integer, or of the number itself.
        integers: Whether it holds whole numbers.
    """

    name: str
    numbers: int
    changed: float
    largest: float
    integers: bool


@dataclass(frozen=True, slots=True)
class Decisions:
    """What both decide on the golden observations of both.

    Attributes:
        rows: How many.
        agreement: Part of them with the same greedy action, 0 to 1.
        kl: Nats, the mean of KL(first || second).
    """

    rows: int
    agreement: float
    kl: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Between a first version and a second.

    Attributes:
        same_graph: Whether they are of one architecture; only then are tensors and delta told.
        tensors: That both have.
        delta_bytes: Of the refresh that a device gets that has the first; None: another graph.
        decisions: None where the spaces are not known, or are not the same.
    """

    same_graph: bool
    tensors: tuple[TensorChange, ...]
    delta_bytes: int | None
    decisions: Decisions | None


def difference_of(
    first: Published,
    second: Published,
    graphs: Mapping[bytes, bytes],
    spec: EnvSpec | None,
) -> Difference:
    """Compares two versions.

    Args:
        first: The one, proven.
        second: The other.
        graphs: Theirs, by digest.
        spec: The spaces that they act in; None: unknown.
    """
    bundles = decode_bundle(first.bundle), decode_bundle(second.bundle)
    a, b = (decode_tensors(bundle.tensors) for bundle in bundles)
    same_graph = first.manifest.graph_digest == second.manifest.graph_digest
    changes: tuple[TensorChange, ...] = ()
    delta_bytes = None
    if same_graph:
        changes = tuple(
            change_of(name, a[name], b[name])
            for name in sorted(a.keys() & b.keys())
            if a[name].shape == b[name].shape and a[name].dtype == b[name].dtype
        )
        delta = PolicyDelta.between(*bundles, packer=LeaveRaw())
        delta_bytes = len(compress_policy_delta(delta))
    fingerprints = {first.manifest.spec_fingerprint, second.manifest.spec_fingerprint}
    decisions = None
    if spec is not None and fingerprints == {spec.fingerprint}:
        models = [
            (graphs[published.manifest.graph_digest], tensors)
            for published, tensors in ((first, a), (second, b))
        ]
        decisions = _decisions(models, bundles, spec)
    return Difference(same_graph, changes, delta_bytes, decisions)


def change_of(name: str, a: Array, b: Array) -> TensorChange:
    """How one tensor changed; both are of one shape and dtype.

    >>> change_of("w", np.array([1, 2], np.int8), np.array([1, 5], np.int8)).largest
    3.0
    """
    apart = np.abs(b.astype(np.float64) - a.astype(np.float64))
    return TensorChange(
        name=name,
        numbers=a.size,
        changed=float((apart > 0).mean()) if a.size else 0.0,
        largest=float(apart.max(initial=0.0)),
        integers=a.dtype.kind in "iub",
    )


def _decisions(
    models: Sequence[tuple[bytes, Mapping[str, Array]]],
    bundles: tuple[Bundle, Bundle],
    spec: EnvSpec,
) -> Decisions | None:
    action, layout = ActionLayout.of(spec.action), ObservationLayout.of(spec.observation)
    goldens = [decode_golden(bundle.golden) for bundle in bundles]
    states = _states(goldens)
    if states is None and any(golden.states is not None for golden in goldens):
        return None  # their memories have nothing in common
    observations = np.concatenate([golden.observations for golden in goldens])
    quiet = np.zeros((len(observations), action.noise_width), np.float32)
    actions, params = [], []
    for graph, tensors in models:
        session = open_session(graph, tensors)
        given = feeds(layout, observations, quiet, states)
        decided, distribution = session.run([ACTION, DISTRIBUTION], given)
        actions.append(decided)
        params.append(distribution)
    if params[0].shape != params[1].shape:
        return None
    values = EXPLORES in models[0][1]
    return Decisions(
        rows=len(observations),
        agreement=float(alike(action, actions[0], actions[1]).mean()),
        kl=divergence(action, params[0], params[1], values=values),
    )


def _states(goldens: list[Golden]) -> Array | None:
    states = [golden.states for golden in goldens if golden.states is not None]
    if len(states) < len(goldens) or len({each.shape[1] for each in states}) > 1:
        return None
    return np.concatenate(states)
