"""Spaces, networks and rows of observations that the tests of models and quantization share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from torch import Tensor, nn

from cloud_learner.config import NetworkConfig
from cloud_learner.models.graph_layers import Precision
from cloud_learner.models.heads import Head
from cloud_learner.models.policy import Policy, build_policy
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.sample import Sample, probe_sample
from cloud_learner.quantization.session import feeds, open_session
from cloud_learner.quantization.tensors import make_tensors
from shoal.noise import noise_block
from shoal.spaces import (
    Box,
    Dict,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    unbounded,
)
from shoal.tensors import Array

RUN_ID: Final = bytes(range(16))


def pixels(*shape: int) -> Box:
    return Box(np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8))


def bounded(shape: tuple[int, ...], low: float, high: float) -> Box:
    return Box(np.full(shape, low, np.float32), np.full(shape, high, np.float32))


def multi(*values: int, shape: tuple[int, ...] | None = None) -> MultiDiscrete:
    nvec = np.array(values, np.int64).reshape(shape or (len(values),))
    return MultiDiscrete(nvec, np.zeros_like(nvec))


GRID = multi(2, 3, 4, 2, shape=(2, 2))
NEST = Dict(
    (
        ("arm", unbounded((3,))),
        ("camera", pixels(12, 14, 3)),
        ("grid", GRID),
        ("more", Tuple((Discrete(3), MultiBinary((2,))))),
    )
)

OBSERVATIONS: Mapping[str, Space] = {
    "vector": unbounded((4,)),
    "matrix": unbounded((2, 3)),
    "float64 scalar": unbounded((), np.float64),
    "int32": Box(np.full(5, -50, np.int32), np.full(5, 100, np.int32)),
    "bool": Box(np.zeros(5, np.bool_), np.ones(5, np.bool_)),
    "ram": pixels(20),
    "image": pixels(3, 36, 40),
    "two images": Tuple((pixels(10, 10, 1), pixels(13, 12, 2))),
    "discrete": Discrete(5),
    "nest": NEST,
}

ACTIONS: Mapping[str, Space] = {
    "discrete": Discrete(3),
    "one choice": Discrete(1),
    "multi-discrete": multi(3, 2, 5),
    "2-D multi-discrete": GRID,
    "multi-binary": MultiBinary((2, 2)),
    "box": bounded((2,), -2.0, 1.0),
    "box matrix": unbounded((2, 1)),
    "box scalar": unbounded(()),
    "dict": Dict((("arm", bounded((2,), -2.0, 1.0)), ("grid", GRID), ("grip", Discrete(3)))),
    "discrete tuple": Tuple((Discrete(2), multi(4, 3))),
    "tuple of one": Tuple((Discrete(3),)),
}

KINDS = ("auto", "mlp", "lstm", "attention", "networks:own_torso")


def own_torso(inputs: int, network: NetworkConfig) -> nn.Sequential:
    """A torso of a user's own, with every kind of activation."""
    width = network.hidden[0]
    return nn.Sequential(
        nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 12), nn.Linear(12, 8), nn.ReLU()
    )


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A policy that looks trained, and rows for it."""

    policy: Policy
    sample: Sample
    noise: NDArray[np.float32]

    @property
    def spec(self) -> EnvSpec:
        return self.policy.spec

    def asked(self) -> Tensor:
        """Parameters `[M, P]` from torch."""
        return self.stepped()[0]

    def stepped(self) -> tuple[Tensor, Tensor]:
        """Parameters `[M, P]` and next states `[M, S]` from torch."""
        observations = torch.from_numpy(self.sample.observations).unsqueeze(0)
        starts = torch.zeros(1, len(self.noise), dtype=torch.bool)
        with torch.no_grad():
            unrolled = self.policy.unroll(
                observations, torch.from_numpy(self.sample.states), starts
            )
        return unrolled.params[0], unrolled.state

    def run(
        self,
        quantizer: Quantizer,
        precision: Precision,
        *,
        greedy: bool = False,
        tensors: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Every output of a graph, with its tensors, or those of ranges as they are held."""
        if tensors is None:
            tensors = make_tensors(self.policy, precision, quantizer._ranges)
        return self.run_in(open_session(quantizer.graphs[precision], tensors), greedy=greedy)

    def run_in(self, session: InferenceSession, *, greedy: bool = False) -> dict[str, Array]:
        """Every output of a session."""
        names = [output.name for output in session.get_outputs()]
        noise = np.zeros_like(self.noise) if greedy else self.noise
        given = feeds(self.policy.observation, self.sample.observations, noise, self.sample.states)
        return dict(zip(names, session.run(names, given), strict=True))


SMALL: Final = NetworkConfig(hidden=(32, 16), memory=8, window=4)


def make_case(
    observation: Space,
    action: Space,
    network: NetworkConfig = SMALL,
    *,
    head: Head = "sample",
    seed: int = 0,
    dueling: bool = False,
) -> Case:
    policy = build_policy(
        EnvSpec("Test-v0", observation, action), network, head=head, seed=seed, dueling=dueling
    )
    look_trained(policy, seed)
    policy.epsilon = 0.2
    policy.observe(probe_sample(policy, seed=seed + 1).observations)
    sample = probe_sample(policy, seed=seed + 2)
    noise = noise_block(RUN_ID, 0, 1, len(sample.observations), action)[0]
    return Case(policy, sample, noise)


def look_trained(policy: Policy, seed: int = 0) -> None:
    """Moves weights away from where they start: outputs differ, and no bias is 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name == "log_std":
                parameter.copy_(torch.linspace(-1.5, -0.5, parameter.numel()))
            elif name.startswith(f"network.layers.{policy.plan.last}."):
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
            elif "bias" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def of_kind(
    kind: str, *, normalize: bool = False, quantization_aware: bool = False
) -> NetworkConfig:
    """A small network of a kind."""
    return replace(SMALL, kind=kind, normalize=normalize, quantization_aware=quantization_aware)
