"""A learner's publishing side without a learner: small int8 policies, signed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from policy_graphs import GraphWriter, Weights
from strategies import some_observations

from edge_agent.policies.policy import Policy
from shoal.delegation import Delegation, sign_delegation
from shoal.layout import ObservationLayout
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
from shoal.spaces import Discrete, EnvSpec, unbounded
from shoal.tensors import Array, encode_tensors

CARTPOLE_LIKE = EnvSpec("counting", unbounded((4,)), Discrete(2))
GOLDEN_ROWS = 16


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
    memory: int = 0
    delegate: tuple[Ed25519PrivateKey, bytes] | None = None  # signs by that delegation
    changes: dict[str, Any] = field(default_factory=dict)  # of every manifest

    @property
    def public_key(self) -> bytes:
        return self.key.public_key().public_bytes_raw()

    def delegating(
        self,
        generation: int,
        *,
        begins_s: float = -300.0,
        lasts_s: float = 86_400.0,
        root: Ed25519PrivateKey | None = None,
        **changes: Any,  # noqa: ANN401 - whatever a delegation says
    ) -> Publisher:
        """The same with a delegate that signs; its dates count from now."""
        now_s = time.time()
        key = Ed25519PrivateKey.generate()
        delegation = Delegation(
            fleet=self.fleet,
            public_key=key.public_key().public_bytes_raw(),
            generation=generation,
            not_before_s=int(now_s + begins_s),
            not_after_s=int(now_s + begins_s + lasts_s),
        )
        signed = sign_delegation(replace(delegation, **changes), root or self.key)
        return replace(self, delegate=(key, signed))

    def weights(self, seed: int = 0) -> Weights:
        writer = GraphWriter(self.spec, hidden=self.hidden, seed=seed, memory=self.memory)
        return Weights(writer.graph, writer.tensors)

    def policy(self, version: int = 1, seed: int = 0, **tensors: Array | np.generic) -> Policy:
        """A loaded policy, straight past every check."""
        weights = self.weights(seed)
        merged = {
            **weights.tensors,
            **{name: np.asarray(value) for name, value in tensors.items()},
        }
        return self._load(weights.graph, merged, self._manifest(version, weights.graph, merged))

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
            golden = self.golden(self._load(weights.graph, weights.tensors, manifest))
        encoded = encode_golden(golden)
        manifest = replace(manifest, golden_digest=sha256(encoded), **changes)  # type: ignore[arg-type]
        signed = encode_manifest(manifest)
        key, delegation = self.delegate or (self.key, b"")
        bundle = Bundle(
            manifest=signed,
            signature=key.sign(SIGNING_CONTEXT + signed),
            tensors=encode_tensors(weights.tensors),
            golden=encoded,
            delegation=delegation,
        )
        return Published(manifest, bundle, weights.graph)

    def golden(self, policy: Policy) -> Golden:
        layout = ObservationLayout.of(self.spec.observation)
        rng = np.random.default_rng(policy.version)
        observations = some_observations(self.spec.observation, (GOLDEN_ROWS,), rng)
        if not layout.packed and layout.dtype.kind == "f":
            observations = rng.normal(size=observations.shape).astype(layout.dtype)
        noise = noise_block(bytes(16), 0, 1, GOLDEN_ROWS, self.spec.action)[0]
        states = rng.random((GOLDEN_ROWS, self.memory), np.float32) if self.memory else None
        decided = policy.act(observations, noise, states)
        return Golden(
            observations, noise, decided.actions, decided.log_probs, states, decided.next_states
        )

    def _load(self, graph: bytes, tensors: dict[str, Array], manifest: Manifest) -> Policy:
        layout = ObservationLayout.of(self.spec.observation)
        return Policy.load(graph, tensors, manifest, layout)

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
            **self.changes,
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
