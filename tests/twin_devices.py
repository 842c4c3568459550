"""A learner and a device whose policies have twins, and times that a test decides."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from networks import make_case

from cloud_learner.downlink.published import Circumstances, Published, sign_policy
from cloud_learner.quantization.quantize import Quantizer
from edge_agent.events import Events
from edge_agent.policies.policy import Policy
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.policies.precision import PrecisionChooser, Wanted
from shoal.policy import Golden, sha256
from shoal.spaces import Discrete, unbounded

CASE = make_case(unbounded((4,)), Discrete(2))
SPEC = CASE.spec
FLEET = "pond"
RUN = bytes(range(16))


class FakeTimes:
    """Has the forms of a policy take as long as it is told."""

    def __init__(self, int8_us: float, fp32_us: float, int8_dynamic_us: float = 1000.0) -> None:
        self.asked = 0
        self.times_us = {"int8": int8_us, "fp32": fp32_us, "int8_dynamic": int8_dynamic_us}

    def __call__(self, policies: Sequence[Policy], golden: Golden, envs: int) -> Sequence[float]:
        self.asked += 1
        return [self.times_us[policy.precision] for policy in policies]


@dataclass
class Learner:
    """Publishes int8 versions with a float twin."""

    quantizer: Quantizer = field(default_factory=lambda: Quantizer(CASE.policy, kl_max=np.inf))
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    asked: list[bytes] = field(default_factory=list)
    float_graph: bytes | None = None

    @property
    def graphs(self) -> dict[bytes, bytes]:
        """By digest."""
        graphs = (self.quantizer.graphs["int8"], self.float_graph)
        return {sha256(graph): graph for graph in graphs if graph is not None}

    def publish(self, version: int, *, twin: bool = True, spoil: bool = False) -> Published:
        """A signed version; `spoil`: its graph for the twin is one that cannot be loaded."""
        quantized = self.quantizer.quantize(CASE.policy, CASE.sample)
        self.float_graph = self.quantizer.graphs["fp32"] if twin else None
        if spoil:
            self.float_graph = b"no graph"
        circumstances = Circumstances(
            fleet=FLEET,
            version=version,
            updates=version,
            spec_fingerprint=SPEC.fingerprint,
            created_unix_ms=0,
            reason="publish",
        )
        graph = self.quantizer.graphs["int8"]
        return sign_policy(quantized, graph, circumstances, self.key, float_graph=self.float_graph)

    def fetch(self, digest: bytes) -> bytes:
        self.asked.append(digest)
        return self.graphs[digest]


class Device:
    """A policy store on a directory of its own, started again and again."""

    def __init__(self, directory: Path, learner: Learner) -> None:
        self.events = Events("pi-1", RUN, clock=lambda: 0.0)
        self._directory = directory
        self._learner = learner
        self._stack = ExitStack()

    def start(self, wanted: Wanted, times: FakeTimes | None = None) -> PolicyStore:
        self._stack.close()
        self.chooser = PrecisionChooser(
            wanted, spec=SPEC, envs=2, events=self.events, times_of=times
        )
        return self._stack.enter_context(
            PolicyStore(
                self._directory,
                fleet=FLEET,
                public_key=self._learner.key.public_key().public_bytes_raw(),
                spec=SPEC,
                chooser=self.chooser,
            )
        )

    def stop(self) -> None:
        self._stack.close()

    def said(self) -> list[tuple[str, str]]:
        return [(event.name, event.message) for event in self.events.take()]
