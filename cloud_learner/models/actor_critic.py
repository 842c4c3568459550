"""A policy and a separate critic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cloud_learner.config import NetworkConfig
from cloud_learner.models.network import Network, run
from cloud_learner.models.policy import Policy
from cloud_learner.models.torso import build_layers
from shoal.spaces import EnvSpec


class ActorCritic(nn.Module):
    """Policy and value networks over one environment's spaces.

    >>> model = build_actor_critic(spec, NetworkConfig(), seed=0)
    >>> unrolled = model.policy.unroll(observations, state, starts)
    >>> values = model.value(observations, unrolled.memory)

    The critic has layers of its own. It sees observations through the policy's normalizer, and
    where the policy has memory it reads that too: pass `memory.detach()` to leave the memory to the
    policy's loss.
    """

    def __init__(self, spec: EnvSpec, network: NetworkConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.policy = Policy(spec, network, "sample", generator)
        memory = self.policy.plan.memory
        self.critic = Network(
            build_layers(
                self.policy.plan.features,
                network,
                outputs=1,
                gain=1.0,
                generator=generator,
                extra=0 if memory is None else memory.units,
                with_memory=False,
            ),
            scale_vector=self.policy.normalizer is None,
        )

    def value(self, observations: Tensor, memory: Tensor | None = None) -> Tensor:
        """Expected return `[...]` from observations `[..., *obs]`.

        Args:
            observations: As chunks hold them.
            memory: `[..., F]`, `Unrolled.memory`; not read where the policy has none.
        """
        extra = memory if self.policy.state_width else None
        return run(self.critic, self.policy.features(observations), extra).squeeze(-1)


def build_actor_critic(spec: EnvSpec, network: NetworkConfig, *, seed: int) -> ActorCritic:
    """Builds both; equal seeds give equal weights, and torch's global generator is left alone.

    Raises:
        ConfigError: This network does not fit these spaces.
    """
    return ActorCritic(spec, network, torch.Generator().manual_seed(seed))
