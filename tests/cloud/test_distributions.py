"""Action distributions, against numpy references and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from cloud_learner.models.distributions import (
    Categorical,
    DiagonalGaussian,
    distribution_of,
    sampled_kl,
)
from shoal.spaces import Discrete, unbounded


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_discrete_space_gets_a_categorical_and_a_box_a_gaussian() -> None:
    assert distribution_of(Discrete(5)).parameters == 5
    assert distribution_of(unbounded((2, 3))).parameters == 12


@given(n=st.integers(1, 9), seed=st.integers(0, 1000), scale=st.floats(0.0, 50.0))
def test_categorical_agrees_with_the_library(n: int, seed: int, scale: float) -> None:
    rng = generator(seed)
    params = scale * torch.randn(3, 4, n, generator=rng)
    other = torch.randn(3, 4, n, generator=rng)
    actions = torch.randint(0, n, (3, 4), generator=rng)
    ours, theirs = Categorical(n), TorchCategorical(logits=params)
    torch.testing.assert_close(ours.log_prob(params, actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(params), theirs.entropy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        ours.kl(params, other),
        kl_divergence(theirs, TorchCategorical(logits=other)),
        rtol=1e-4,
        atol=1e-4,
    )


@given(seed=st.integers(0, 1000))
def test_gaussian_agrees_with_the_library(seed: int) -> None:
    rng = generator(seed)
    params = torch.randn(5, 12, generator=rng)
    other = torch.randn(5, 12, generator=rng)
    actions = torch.randn(5, 2, 3, generator=rng)

    def library(p: torch.Tensor) -> Independent:
        return Independent(Normal(p[:, :6].view(-1, 2, 3), p[:, 6:].exp().view(-1, 2, 3)), 2)

    ours, theirs = DiagonalGaussian((2, 3)), library(params)
    torch.testing.assert_close(
        ours.log_prob(params, actions), theirs.log_prob(actions), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(ours.entropy(params), theirs.entropy())
    torch.testing.assert_close(
        ours.kl(params, other), kl_divergence(theirs, library(other)), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)])
def test_gaussian_takes_actions_of_any_shape(shape: tuple[int, ...]) -> None:
    family = DiagonalGaussian(shape)
    params = torch.zeros(4, 5, family.parameters)
    log_prob = family.log_prob(params, torch.zeros(4, 5, *shape))
    expected = -0.5 * math.prod(shape) * math.log(2 * math.pi)
    torch.testing.assert_close(log_prob, torch.full((4, 5), expected))


def test_kl_of_a_distribution_from_itself_is_zero() -> None:
    params = torch.randn(7, 6, generator=generator())
    torch.testing.assert_close(Categorical(6).kl(params, params), torch.zeros(7))
    torch.testing.assert_close(DiagonalGaussian((3,)).kl(params, params), torch.zeros(7))


def test_extreme_logits_stay_finite_with_their_gradients() -> None:
    params = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    family = Categorical(2)
    total = family.log_prob(params, torch.tensor([0, 0])).sum() + family.entropy(params).sum()
    (gradient,) = torch.autograd.grad(total, params)
    assert torch.isfinite(total)
    assert torch.isfinite(gradient).all()


def test_sampled_kl_estimates_the_true_kl() -> None:
    old, new = torch.tensor([0.0, 0.3, -0.4]), torch.tensor([0.2, 0.0, -0.1])
    actions = torch.multinomial(old.softmax(0), 200_000, replacement=True, generator=generator())
    family = Categorical(3)
    log_ratio = family.log_prob(new.expand(len(actions), 3), actions) - family.log_prob(
        old.expand(len(actions), 3), actions
    )
    assert float(sampled_kl(log_ratio)) == pytest.approx(float(family.kl(new, old)), rel=0.05)


def test_sampled_kl_is_never_negative() -> None:
    log_ratio = torch.from_numpy(np.random.default_rng(0).normal(size=64).astype(np.float32))
    assert float(sampled_kl(log_ratio)) > 0.0
    assert float(sampled_kl(torch.zeros(3))) == 0.0
