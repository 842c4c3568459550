"""Action distributions, against numpy references and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import bounded
from numpy.typing import NDArray

from cloud_learner.models.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    Product,
    sampled_kl,
)
from cloud_learner.models.exploring import EpsilonGreedy, SquashedGaussian
from cloud_learner.models.heads import Head, distribution_of
from shoal.layout import ActionLayout
from shoal.spaces import Dict, Discrete, MultiBinary, MultiDiscrete, Space, unbounded


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


GRID = MultiDiscrete(np.array([[2, 3], [4, 2]]), np.zeros((2, 2), np.int64))


@pytest.mark.parametrize(
    ("space", "head", "family", "parameters"),
    [
        (Discrete(5), "sample", Categorical, 5),
        (Discrete(5), "greedy", EpsilonGreedy, 5),
        (unbounded((2, 3)), "sample", DiagonalGaussian, 12),
        (bounded((2, 3), -1.0, 1.0), "squash", SquashedGaussian, 12),
        (GRID, "sample", MultiCategorical, 11),
        (MultiBinary((2, 2)), "sample", MultiCategorical, 8),
        (Dict((("a", Discrete(3)), ("b", unbounded((2,))))), "sample", Product, 7),
    ],
)
def test_each_space_gets_the_family_of_its_head(
    space: Space, head: Head, family: type, parameters: int
) -> None:
    made = distribution_of(ActionLayout.of(space), head)
    assert isinstance(made, family)
    assert made.parameters == parameters


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


def test_a_multi_categorical_is_the_sum_of_its_elements() -> None:
    family = distribution_of(ActionLayout.of(GRID))
    params, other = torch.randn(2, 5, 11, generator=generator())
    actions = torch.tensor([[[1, 2], [3, 0]]]).expand(5, 2, 2)
    parts = [Categorical(n) for n in (2, 3, 4, 2)]
    own, theirs = (x.split((2, 3, 4, 2), -1) for x in (params, other))
    flat = actions.reshape(5, 4)
    expected = [sum(p.log_prob(own[i], flat[:, i]) for i, p in enumerate(parts))]
    expected.append(sum(p.entropy(own[i]) for i, p in enumerate(parts)))
    expected.append(sum(p.kl(own[i], theirs[i]) for i, p in enumerate(parts)))
    found = [family.log_prob(params, actions), family.entropy(params), family.kl(params, other)]
    for ours, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, reference)
    modes = family.mode(params)
    assert modes.shape == (5, 2, 2)
    torch.testing.assert_close(modes.reshape(5, 4)[:, 2], own[2].argmax(-1))


def test_a_product_reads_each_leaf_at_its_place() -> None:
    space = Dict((("a", Discrete(3)), ("b", unbounded((2,))), ("c", MultiBinary((2,)))))
    family = distribution_of(ActionLayout.of(space))
    params = torch.randn(4, 11, generator=generator())
    actions = torch.tensor([[2.0, 0.3, -1.0, 1.0, 0.0]]).expand(4, 5)
    logits, gaussian, binary = params[:, :3], params[:, 3:7], params[:, 7:]
    expected = (
        Categorical(3).log_prob(logits, torch.full((4,), 2))
        + DiagonalGaussian((2,)).log_prob(gaussian, actions[:, 1:3])
        + Categorical(2).log_prob(binary[:, :2], torch.ones(4, dtype=torch.int64))
        + Categorical(2).log_prob(binary[:, 2:], torch.zeros(4, dtype=torch.int64))
    )
    torch.testing.assert_close(family.log_prob(params, actions), expected)
    mode = family.mode(params)
    assert mode.dtype == torch.float32
    torch.testing.assert_close(mode[:, 0], logits.argmax(-1).float())
    torch.testing.assert_close(mode[:, 1:3], gaussian[:, :2])


def squashed(low: float, high: float, shape: tuple[int, ...] = (1,)) -> SquashedGaussian:
    made = distribution_of(ActionLayout.of(bounded(shape, low, high)), "squash")
    assert isinstance(made, SquashedGaussian)
    return made


@given(
    mean=st.floats(-2.0, 2.0),
    log_std=st.floats(-2.0, 0.5),
    low=st.sampled_from([-1.0, -2.0, 3.0]),
    width=st.sampled_from([0.5, 2.0, 7.0]),
)
def test_a_squashed_density_integrates_to_one(
    mean: float, log_std: float, low: float, width: float
) -> None:
    family = squashed(low, low + width)
    inner = np.linspace(mean - 9.0 * np.exp(log_std), mean + 9.0 * np.exp(log_std), 40_001)
    inner = inner[np.abs(inner) < 6.5]  # where float32 still tells actions apart
    actions = low + 0.5 * width * (np.tanh(inner) + 1.0)
    params = torch.tensor([mean, log_std], dtype=torch.float64).expand(len(actions), 2)
    density = family.log_prob(params, torch.from_numpy(actions)[:, None]).exp().numpy()
    outside = 0.0
    for edge in (inner[0], -inner[-1]):
        offset = mean if edge == inner[0] else -mean
        outside += 0.5 * math.erfc(-(edge - offset) / np.exp(log_std) / math.sqrt(2.0))
    assert float(np.trapezoid(density, actions)) + outside == pytest.approx(1.0, abs=2e-3)


def test_a_squashed_sample_knows_its_density_and_stays_within_bounds() -> None:
    family = squashed(-2.0, 1.0, (2, 2))
    params = torch.randn(50, 8, generator=generator()).mul(0.5)
    noise = torch.randn(50, 4, generator=generator(1))
    sampled = family.rsample(params, noise)
    assert sampled.action.shape == (50, 2, 2)
    assert (sampled.action >= -2.0).all()
    assert (sampled.action <= 1.0).all()
    torch.testing.assert_close(
        sampled.log_prob, family.log_prob(params, sampled.action), atol=1e-3, rtol=1e-3
    )
    torch.testing.assert_close(
        family.mode(params), family.rsample(params, torch.zeros(50, 4)).action
    )


def test_a_squashed_density_is_finite_far_out_with_its_gradients() -> None:
    family = squashed(-1.0, 1.0)
    params = torch.tensor([[40.0, 2.0], [-40.0, -5.0]], requires_grad=True)
    sampled = family.rsample(params, torch.ones(2, 1))
    (gradient,) = torch.autograd.grad(sampled.log_prob.sum() + sampled.action.sum(), params)
    assert sampled.log_prob.isfinite().all()
    assert gradient.isfinite().all()
    assert family.log_prob(params, torch.tensor([[1.0], [-1.0]])).isfinite().all()


def test_squashed_kl_is_that_of_the_normals_beneath() -> None:
    params, other = torch.randn(2, 6, 4, generator=generator())
    expected = DiagonalGaussian((2,)).kl(params, other)
    torch.testing.assert_close(squashed(-1.0, 1.0, (2,)).kl(params, other), expected)


def test_squashed_entropy_is_an_upper_bound_and_near_for_narrow_ones() -> None:
    family = squashed(-1.0, 3.0)
    noise = torch.randn(40_000, 1, generator=generator())
    for mean, log_std, near in ((0.3, -4.0, 1e-2), (0.3, -0.5, 1.0), (2.0, 0.0, 1.0)):
        params = torch.tensor([mean, log_std]).expand(len(noise), 2)
        estimate = -float(family.rsample(params, noise).log_prob.mean())
        bound = float(family.entropy(params)[0])
        assert estimate - 1e-2 <= bound <= estimate + near


@given(n=st.integers(1, 9), epsilon=st.sampled_from([0.0, 1e-3, 0.1, 0.5, 0.99, 1.0]))
def test_epsilon_greedy_is_its_formula(n: int, epsilon: float) -> None:
    family = EpsilonGreedy(n, epsilon)
    values = torch.randn(5, n, generator=generator())
    each = torch.stack([family.log_prob(values, torch.full((5,), a)) for a in range(n)], -1)
    expected = torch.full((5, n), epsilon / n)
    expected[torch.arange(5), values.argmax(-1)] += 1.0 - epsilon
    torch.testing.assert_close(each.exp(), expected)
    terms = torch.special.entr(expected).sum(-1)
    torch.testing.assert_close(family.entropy(values), terms, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(family.kl(values, values), torch.zeros(5))


def test_epsilon_greedy_kl_counts_where_preferences_differ() -> None:
    family = EpsilonGreedy(3, 0.3)
    ours, theirs = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    p, q = torch.tensor([0.8, 0.1, 0.1]), torch.tensor([0.1, 0.8, 0.1])
    expected = (p * (p / q).log()).sum()
    torch.testing.assert_close(family.kl(ours, theirs)[0], expected)


@pytest.mark.parametrize("epsilon", [0.02, 0.3, 0.9])
def test_the_largest_of_n_gumbels_is_over_the_threshold_as_often_as_epsilon(epsilon: float) -> None:
    family = EpsilonGreedy(4, epsilon)
    noise = np.random.default_rng(0).gumbel(size=(100_000, 4))
    explores = noise.max(1) > family.threshold
    assert explores.mean() == pytest.approx(epsilon, abs=0.005)
    shares = np.bincount(noise.argmax(1)[explores], minlength=4) / explores.sum()
    np.testing.assert_allclose(shares, 0.25, atol=0.03)


@pytest.mark.parametrize(
    "family",
    [Categorical(4), EpsilonGreedy(4, 0.1), squashed(-1.0, 1.0, (2,)), DiagonalGaussian((2,))],
)
def test_kl_is_never_negative(family: Distribution) -> None:
    params, other = torch.randn(2, 50, 4, generator=generator())
    assert (family.kl(params, other) >= 0.0).all()
