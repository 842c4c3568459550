"""Action distributions, against numpy references and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

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


Floats = NDArray[np.float64]


def log_softmax(logits: Floats) -> Floats:
    shifted: Floats = logits - logits.max(-1, keepdims=True)
    normalized: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalized


@given(n=st.integers(1, 9), seed=st.integers(0, 1000), scale=st.floats(0.0, 50.0))
def test_categorical_is_its_formula(n: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    params, other = scale * rng.normal(size=(3, 4, n)), rng.normal(size=(3, 4, n))
    actions = rng.integers(0, n, (3, 4))
    log_p, log_q = log_softmax(params), log_softmax(other)
    family, ours, theirs = Categorical(n), torch.from_numpy(params), torch.from_numpy(other)
    np.testing.assert_allclose(
        family.log_prob(ours, torch.from_numpy(actions)),
        np.take_along_axis(log_p, actions[..., None], -1)[..., 0],
        atol=1e-9,
    )
    np.testing.assert_allclose(family.entropy(ours), -(np.exp(log_p) * log_p).sum(-1), atol=1e-9)
    np.testing.assert_allclose(
        family.kl(ours, theirs), (np.exp(log_p) * (log_p - log_q)).sum(-1), atol=1e-9
    )


@given(seed=st.integers(0, 1000))
def test_gaussian_is_its_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mean, log_std, other_mean, other_log_std = rng.normal(size=(4, 5, 6))
    actions = rng.normal(size=(5, 2, 3))
    var, other_var = np.exp(2.0 * log_std), np.exp(2.0 * other_log_std)
    family = DiagonalGaussian((2, 3))
    ours = torch.from_numpy(np.concatenate((mean, log_std), 1))
    theirs = torch.from_numpy(np.concatenate((other_mean, other_log_std), 1))
    flat = actions.reshape(5, 6)
    log_density = -((flat - mean) ** 2) / (2.0 * var) - 0.5 * np.log(2.0 * np.pi * var)
    np.testing.assert_allclose(
        family.log_prob(ours, torch.from_numpy(actions)), log_density.sum(1), rtol=1e-9
    )
    np.testing.assert_allclose(
        family.entropy(ours), 0.5 * np.log(2.0 * np.pi * np.e * var).sum(1), rtol=1e-9
    )
    expected = 0.5 * ((var + (mean - other_mean) ** 2) / other_var - 1.0 + np.log(other_var / var))
    np.testing.assert_allclose(family.kl(ours, theirs), expected.sum(1), rtol=1e-9)


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
