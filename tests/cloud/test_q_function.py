"""Twin Q-functions: asked together they say what each says alone."""

from __future__ import annotations

import pytest
import torch
from networks import ACTIONS, OBSERVATIONS, make_case, of_kind
from torch import Tensor

from cloud_learner.algorithms.optimiser import Optimiser, OptimiserSettings
from cloud_learner.models.q_function import QFunction, TwinQFunction, build_q_function

CASES = [("vector", "mlp"), ("vector", "networks:own_torso"), ("ram", "mlp"), ("image", "cnn")]
CASES += [("nest", "cnn"), ("nest", "lstm")]


def draw(observation: str, kind: str, *, normalize: bool) -> tuple[TwinQFunction, Tensor, Tensor]:
    """Twins that are no copies of each other, with rows of observations and actions."""
    network = of_kind(kind, normalize=normalize)
    case = make_case(OBSERVATIONS[observation], ACTIONS["box"], network, head="squash")
    members = [
        build_q_function(case.spec, network, seed=seed, normalizer=case.policy.normalizer)
        for seed in (1, 2)
    ]
    observations = torch.from_numpy(case.sample.observations)
    with torch.no_grad():
        sampled = case.policy.distribution.mode(case.asked())
    return TwinQFunction(members), observations, sampled


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("observation", "kind"), CASES)
def test_twins_say_together_what_each_says_alone_and_learn_alike(
    observation: str,
    kind: str,
    normalize: bool,  # noqa: FBT001 - a parameter
) -> None:
    twin, observations, actions = draw(observation, kind, normalize=normalize)
    optimiser = Optimiser(twin.parameters(), OptimiserSettings(), copies=2)
    twin.lie_in(optimiser.leaves)
    together = twin(observations, actions)
    alone = torch.stack([member(observations, actions) for member in twin])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together[0], together[1])
    weights = torch.linspace(-1.0, 1.0, together.numel()).reshape(together.shape)
    wanted = torch.autograd.grad((weights * alone).sum(), list(twin.parameters()))
    got = optimiser.gradient((weights * together).sum())
    flat = torch.cat([gradient.reshape(-1) for gradient in wanted])
    torch.testing.assert_close(got, flat, rtol=1e-4, atol=1e-5)


def test_a_gradient_to_the_actions_is_that_of_each_alone() -> None:
    twin, observations, actions = draw("vector", "mlp", normalize=True)
    twin.lie_in(Optimiser(twin.parameters(), OptimiserSettings(), copies=2).leaves)
    actions.requires_grad_()
    (got,) = torch.autograd.grad(twin(observations, actions).amin(0).sum(), actions)
    alone = torch.stack([member(observations, actions) for member in twin])
    (wanted,) = torch.autograd.grad(alone.amin(0).sum(), actions)
    torch.testing.assert_close(got, wanted)


def test_members_follow_the_optimiser_whose_weights_they_share() -> None:
    twin, observations, actions = draw("vector", "mlp", normalize=False)
    optimiser = Optimiser(twin.parameters(), OptimiserSettings(), copies=2)
    twin.lie_in(optimiser.leaves)
    before = twin(observations, actions).detach().clone()
    assert optimiser.descend(twin(observations, actions).square().sum()) is not None
    after = twin(observations, actions)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(
        after, torch.stack([member(observations, actions) for member in twin])
    )


def test_a_state_names_the_weights_of_one_member_after_another() -> None:
    twin, _, _ = draw("vector", "mlp", normalize=False)
    names = list(twin.state_dict())
    assert names[0] == "0.network.layers.0.weight"
    assert names[len(names) // 2] == "1.network.layers.0.weight"
    first = twin[0]
    assert isinstance(first, QFunction)
    optimiser = Optimiser(twin.parameters(), OptimiserSettings(), copies=2)
    own = torch.cat([each.detach().reshape(-1) for each in first.parameters()])
    assert torch.equal(optimiser.flat[: len(own)].detach(), own)
