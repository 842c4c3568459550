"""The network that acts: what is trained, quantized and published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloud_learner.config import NetworkConfig
from cloud_learner.models.exploring import EpsilonGreedy
from cloud_learner.models.features import PIXEL_SCALE, Encoder, FeatureLayout, Features
from cloud_learner.models.heads import (
    LOG_STD_BOUNDS,
    Head,
    box_numbers,
    distribution_of,
    output_range,
    outputs_of,
    sampling_params,
    squashing_params,
)
from cloud_learner.models.integers import HeldRanges, IntegerAffine
from cloud_learner.models.memory import Remembered
from cloud_learner.models.network import Affine, FloatRunner, Network, Past, less_mean, no_past
from cloud_learner.models.normalizer import Normalizer
from cloud_learner.models.plan import Plan, flow
from cloud_learner.models.simulated import SimulatedRunner
from cloud_learner.models.torso import build_layers, convolves
from shoal.layout import ActionLayout, ObservationLayout
from shoal.spaces import EnvSpec
from shoal.tensors import Array

_LOG_STD_START: Final = -0.5  # in half ranges of a bounded action: it explores within the bounds
_HEAD_GAIN: Final = 0.01  # a near-uniform start (Andrychowicz et al. 2021, "What matters in ...")


@dataclass(frozen=True, slots=True, eq=False)
class Unrolled:
    """What a policy gives over T steps of B environments.

    Attributes:
        params: `[T, B, P]`.
        memory: `[T, B, F]`, what it remembers at each step, that step included; with gradients.
        states: `[T, B, S]`, what each step read: zeros where an episode begins.
        state: `[B, S]`, after the last step.
    """

    params: Tensor
    memory: Tensor
    states: Tensor
    state: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Ran:
    outputs: Tensor
    remembered: Remembered | None


class Policy(nn.Module):
    """A policy over one environment's spaces.

    >>> policy = build_policy(spec, NetworkConfig(), head="sample", seed=0)
    >>> params = policy(observations)                        # [..., P]; without memory
    >>> unrolled = policy.unroll(observations, state, starts)  # with or without
    >>> policy.distribution.log_prob(params, actions)        # [...]

    Observations are as chunks hold them, in their own dtype; rows of bytes if the space is nested.

    Attributes:
        spec: The spaces.
        observation: How observations lie.
        action: How actions lie.
        head: How it acts.
        distribution: What its parameters mean.
        normalizer: Of the numbers it observes, if there is one.
        state_width: S, 0 without memory.
        ranges: Where its training is quantization-aware: those of the last published version. As
            soon as there was one, `forward` and `unroll` compute what its int8 graph will.
    """

    def __init__(
        self,
        spec: EnvSpec,
        network: NetworkConfig,
        head: Head,
        generator: torch.Generator,
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.observation = ObservationLayout.of(spec.observation)
        self.action = ActionLayout.of(spec.action)
        self.head: Head = head
        self.distribution = distribution_of(self.action, head)
        self.config = network
        features = FeatureLayout.of(self.observation, convolve=convolves(network))
        self.encoder = Encoder(self.observation, features)
        self.normalizer = make_normalizer(features) if network.normalize else None
        built = build_layers(
            features,
            network,
            outputs=outputs_of(self.action, head),
            gain=1.0 if head == "greedy" else _HEAD_GAIN,
            generator=generator,
            dueling=dueling,
        )
        numbers = box_numbers(self.action)
        span = output_range(self.action) if head == "sample" and numbers.size else None
        self.network = Network(
            built,
            scale_vector=self.normalizer is None,
            output_scale=None if span is None else torch.from_numpy(span.half),
            output_center=None if span is None else torch.from_numpy(span.center),
        )
        self.log_std: nn.Parameter | None = None
        if span is not None:
            self.log_std = nn.Parameter(torch.full((numbers.size,), _LOG_STD_START))
            means = np.concatenate(
                [np.full(c.noise_width, not c.values) for c in self.action.choices]
            )
            half = torch.from_numpy(span.half[means])
            self.register_buffer("log_half", half.log(), persistent=False)
        # Of action values only the differences decide. An artefact that holds no more than those
        # spends its integers on them, not on what all actions have in common.
        self.relative_values = False
        self.state_width = built.plan.state_width
        self.ranges = HeldRanges(built.plan) if network.quantization_aware else None
        self._rounded: dict[int, IntegerAffine] | None = None

    log_half: Tensor

    @property
    def plan(self) -> Plan:
        """The shape of its network."""
        return self.network.plan

    @property
    def epsilon(self) -> float:
        """How often a greedy policy explores; 0 for others."""
        family = self.distribution
        return family.epsilon if isinstance(family, EpsilonGreedy) else 0.0

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        if isinstance(self.distribution, EpsilonGreedy):
            self.distribution.epsilon = value

    def acting_affine(self, place: int) -> Affine:
        """The weights of a layer as devices get them."""
        layer = self.network.affine(place)
        if not self.relative_values or self.head != "greedy" or place != self.plan.last:
            return layer
        return less_mean(layer)

    @contextmanager
    def fixed_weights(self) -> Iterator[None]:
        """Within, weights do not change, so those of the int8 graph are rounded only once.

        Gradients pass to what was called first, unless that was without any.
        """
        self._rounded = {}
        try:
            yield
        finally:
            self._rounded = None

    def features(self, observations: Tensor) -> Features:
        """Observations `[..., *obs]`, sorted and normalized, for any network of this learner."""
        found: Features = self.encoder(observations)
        if self.normalizer is None or found.vector is None:
            return found
        return Features(found.images, self.normalizer(found.vector))

    def forward(self, observations: Tensor) -> Tensor:
        """Parameters `[..., P]` at observations `[..., *obs]`, without memory."""
        if self.state_width:
            raise TypeError("this policy has memory: unroll it over steps")
        return self.params(self._run(observations, None).outputs)

    def unroll(self, observations: Tensor, state: Tensor, starts: Tensor) -> Unrolled:
        """Runs it over consecutive steps.

        Args:
            observations: `[T, B, *obs]`.
            state: float32 `[B, S]`, before the first step.
            starts: bool `[T, B]`: whether an episode begins there, with a state of zeros.
        """
        if not self.state_width:
            lead = tuple(starts.shape)
            params = self(observations)
            return Unrolled(
                params, params.new_zeros((*lead, 0)), params.new_zeros((*lead, 0)), state
            )
        ran = self._run(observations, Past(state, starts))
        remembered = ran.remembered
        assert remembered is not None  # noqa: S101 - there is a memory
        params = self.params(ran.outputs)
        return Unrolled(params, remembered.outputs, remembered.states, remembered.state)

    def _run(self, observations: Tensor, past: Past | None) -> _Ran:
        features = self.features(observations)
        if self.ranges is None or not self.ranges.ready:
            floats = FloatRunner(self.network, features, past=past)
            return _Ran(flow(self.plan, floats).data, floats.remembered)
        normalized = self.normalizer is not None
        integers = SimulatedRunner(
            self.network,
            self.ranges,
            features,
            normalized=normalized,
            past=past,
            relative=self.relative_values and self.head == "greedy",
            rounded=self._rounded,
        )
        return _Ran(flow(self.plan, integers).data, integers.remembered)

    def initial_state(self, lanes: int) -> Tensor:
        """The state `[B, S]` in which episodes begin: zeros."""
        return no_past(self.plan, (1, lanes), self.network.affine(0).bias).state

    def params(self, outputs: Tensor) -> Tensor:
        """The distribution's parameters `[..., P]` from the network's outputs."""
        if self.head == "squash":
            return squashing_params(outputs)
        if self.head == "greedy":
            return outputs
        return sampling_params(self.action, outputs, self.acting_log_std())

    def acting_log_std(self) -> Tensor | None:
        """Log deviations `[box numbers]` of a sampling head, in the units of the action."""
        if self.log_std is None:
            return None
        return self.log_std.clamp(*LOG_STD_BOUNDS) + self.log_half

    def observe(self, observations: Array) -> None:
        """Shows the normalizer new observations `[..., *obs]`, each once."""
        if self.normalizer is None:
            return
        native = observations.astype(observations.dtype.newbyteorder("="), copy=False)
        found: Features = self.encoder(torch.from_numpy(np.ascontiguousarray(native)))
        if found.vector is not None:
            self.normalizer.update(found.vector.reshape(-1, found.vector.shape[-1]))


def build_policy(
    spec: EnvSpec, network: NetworkConfig, *, head: Head, seed: int, dueling: bool = False
) -> Policy:
    """Builds the policy of an environment; equal seeds give equal weights.

    Args:
        spec: The spaces.
        network: Which network.
        head: How it acts: `sample` from its distribution, `squash` samples into the bounds of a
            Box, or be `greedy` over action values.
        seed: Of the initial weights; torch's global generator is left alone.
        dueling: Whether the head of action values has two streams.

    Raises:
        ConfigError: This network or this head does not fit these spaces.
    """
    return Policy(spec, network, head, torch.Generator().manual_seed(seed), dueling=dueling)


def make_normalizer(features: FeatureLayout) -> Normalizer | None:
    """A normalizer for the numbers among the features, if there are any."""
    columns: NDArray[np.bool_] = features.columns("number")
    if not columns.any():
        return None
    pixels = features.columns("pixel")
    return Normalizer(columns, np.where(pixels, PIXEL_SCALE, 1.0).astype(np.float32))
