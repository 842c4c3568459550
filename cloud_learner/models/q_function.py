"""Values of actions that are numbers, as soft actor-critic learns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from cloud_learner.config import NetworkConfig
from cloud_learner.models.features import Encoder, FeatureLayout, Features
from cloud_learner.models.heads import action_range
from cloud_learner.models.network import Affine, Network, run
from cloud_learner.models.normalizer import Normalizer
from cloud_learner.models.plan import flow
from cloud_learner.models.stacked import StackedRunner
from cloud_learner.models.torso import build_layers, convolves
from shoal.layout import ActionLayout, ObservationLayout
from shoal.spaces import EnvSpec


@dataclass(frozen=True, slots=True, eq=False)
class QInputs:
    """What a Q-function's network reads.

    Attributes:
        features: Of the observations, normalized.
        actions: float32 `[*lead, A]`, from -1 to 1.
    """

    features: Features
    actions: Tensor


class QFunction(nn.Module):
    """Expected return of an action at an observation.

    >>> q = build_q_function(spec, NetworkConfig(), seed=1, normalizer=policy.normalizer)
    >>> q(observations, actions)       # [...] for [..., *obs] and [..., *act]
    """

    center: Tensor
    half_range: Tensor

    def __init__(
        self,
        spec: EnvSpec,
        network: NetworkConfig,
        generator: torch.Generator,
        normalizer: Normalizer | None,
    ) -> None:
        super().__init__()
        layout, action = ObservationLayout.of(spec.observation), ActionLayout.of(spec.action)
        features = FeatureLayout.of(layout, convolve=convolves(network))
        self.encoder = Encoder(layout, features)
        self._normalizer = [normalizer]  # in a list: it is the policy's, and no part of this module
        self._size = action.size
        span = action_range(action)
        self.register_buffer("center", torch.from_numpy(span.center), persistent=False)
        self.register_buffer("half_range", torch.from_numpy(span.half), persistent=False)
        self.network = Network(
            build_layers(
                features,
                network,
                outputs=1,
                gain=1.0,
                generator=generator,
                extra=action.size,
                with_memory=False,
            ),
            scale_vector=normalizer is None,
        )

    def inputs(self, observations: Tensor, actions: Tensor) -> QInputs:
        """What the network reads of observations `[..., *obs]` and actions `[..., *act]`."""
        features = cast("Features", self.encoder(observations))
        normalizer = self._normalizer[0]
        lead = actions.shape
        if features.vector is not None:
            lead = features.vector.shape[:-1]
            if normalizer is not None:
                features = Features(features.images, normalizer(features.vector))
        else:
            lead = features.images[0].shape[:-3]
        flat = actions.reshape((*lead, self._size)).to(torch.float32)
        return QInputs(features, (flat - self.center) / self.half_range)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Values `[...]` of actions `[..., *act]`, in the environment's units."""
        inputs = self.inputs(observations, actions)
        return run(self.network, inputs.features, inputs.actions).squeeze(-1)


class TwinQFunction(nn.ModuleList):
    """Two Q-functions that are asked together, with one product for a layer of both.

    >>> twin = TwinQFunction([build_q_function(spec, network, seed=seed) for seed in (1, 2)])
    >>> optimiser = Optimiser(twin.parameters(), settings, copies=len(twin))
    >>> twin.lie_in(optimiser.leaves)
    >>> twin(observations, actions)     # [2, M] for [M, *obs] and [M, *act]
    """

    def __init__(self, members: Sequence[QFunction]) -> None:
        super().__init__(members)
        self._first = [members[0]]  # in a list: it is registered as a member already
        self._layers: tuple[Affine, ...] = ()

    def lie_in(self, leaves: Sequence[Tensor]) -> None:
        """Takes over where the parameters of all members lie: `[members, *shape]` each."""
        self._layers = tuple(
            Affine(weight, bias) for weight, bias in zip(leaves[::2], leaves[1::2], strict=True)
        )

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Values `[members, M]` of actions `[M, *act]`, in the environment's units."""
        first = self._first[0]
        inputs = first.inputs(observations, actions)
        runner = StackedRunner(first.network, self._layers, inputs.features, inputs.actions)
        return flow(first.network.plan, runner).data.squeeze(-1)


def build_q_function(
    spec: EnvSpec, network: NetworkConfig, *, seed: int, normalizer: Normalizer | None = None
) -> QFunction:
    """Builds one; equal seeds give equal weights, and torch's global generator is left alone.

    Args:
        spec: The spaces.
        network: Which network; memory is left out.
        seed: Of the initial weights.
        normalizer: The policy's, which sees the same observations.

    Raises:
        ConfigError: This network does not fit these spaces.
    """
    return QFunction(spec, network, torch.Generator().manual_seed(seed), normalizer)
