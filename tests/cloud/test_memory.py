"""Memory: LSTM and attention against plain references, and episodes that do not leak."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from networks import Case, make_case, of_kind
from numpy.typing import NDArray
from torch import Tensor

from cloud_learner.models.plan import Attention
from shoal.spaces import Discrete, unbounded

STEPS, LANES = 9, 3
Floats = NDArray[np.float64]


def case_of(kind: str) -> Case:
    return make_case(unbounded((4,)), Discrete(3), of_kind(kind))


def inputs(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(STEPS, LANES, 4, generator=generator)


def no_starts() -> Tensor:
    return torch.zeros(STEPS, LANES, dtype=torch.bool)


def weights(case: Case, place: int) -> tuple[Floats, Floats]:
    affine = case.policy.network.affine(place)
    return affine.weight.detach().double().numpy(), affine.bias.detach().double().numpy()


def embed(case: Case, observation: Floats) -> Floats:
    for place in case.policy.plan.trunk:
        weight, bias = weights(case, place)
        observation = np.maximum(weight @ observation + bias, 0.0)
    return observation


def sigmoid(x: Floats) -> Floats:
    made: Floats = 1.0 / (1.0 + np.exp(-x))
    return made


def reference(case: Case, observations: Floats) -> Floats:
    """Parameters `[T, P]` of one environment over one episode, step by step."""
    plan = case.policy.plan
    assert plan.projection is not None
    assert plan.memory is not None
    units = plan.memory.units
    weight, bias = weights(case, plan.projection)
    last, offset = weights(case, plan.last)
    hidden, cell = np.zeros(units), np.zeros(units)
    seen: list[tuple[Floats, Floats]] = []
    made = []
    for observation in observations:
        features = embed(case, observation)
        if isinstance(plan.memory, Attention):
            query, key, value = np.split(weight @ features + bias, 3)
            seen = [*seen, (key, value)][-plan.memory.window :]
            assert case.policy.network.age_bias is not None
            ages = case.policy.network.age_bias.detach().double().numpy()[-len(seen) :]
            scores = np.array([query @ k for k, _ in seen]) / math.sqrt(units) + ages
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            looked = sum(share * v for share, (_, v) in zip(shares, seen, strict=True))
            features = np.concatenate((features, np.asarray(looked)))
        else:
            enter, forget, leave, fresh = np.split(
                weight @ np.concatenate((features, hidden)) + bias, 4
            )
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(fresh)
            hidden = sigmoid(leave) * np.tanh(cell)
            features = hidden
        made.append(last @ features + offset)
    return np.array(made)


@pytest.mark.parametrize("kind", ["lstm", "attention"])
def test_memory_is_its_formula(kind: str) -> None:
    case = case_of(kind)
    observations = inputs()
    unrolled = case.policy.unroll(observations, case.policy.initial_state(LANES), no_starts())
    for lane in range(LANES):
        expected = reference(case, observations[:, lane].double().numpy())
        np.testing.assert_allclose(unrolled.params[:, lane].detach(), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "attention"])
def test_nothing_of_an_episode_reaches_the_next(kind: str) -> None:
    case = case_of(kind)
    observations, starts = inputs(), no_starts()
    starts[4, 1] = starts[6, 1] = starts[0, 2] = True
    dirty = torch.randn(LANES, case.policy.state_width, generator=torch.Generator().manual_seed(1))
    dirty[:2] = 0.0
    unrolled = case.policy.unroll(observations, dirty, starts)
    expected = np.concatenate(
        [
            reference(case, observations[a:b, 1].double().numpy())
            for a, b in ((0, 4), (4, 6), (6, 9))
        ]
    )
    np.testing.assert_allclose(unrolled.params[:, 1].detach(), expected, atol=1e-5)
    fresh = reference(case, observations[:, 2].double().numpy())
    np.testing.assert_allclose(unrolled.params[:, 2].detach(), fresh, atol=1e-5)
    assert not unrolled.states[4, 1].any()
    assert not unrolled.states[0, 2].any()


@pytest.mark.parametrize("kind", ["lstm", "attention"])
@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_rollout_cut_in_two_gives_what_the_whole_gives(kind: str, cut: int) -> None:
    case = case_of(kind)
    observations, starts = inputs(), no_starts()
    starts[3, 0] = starts[7, 1] = True
    whole = case.policy.unroll(observations, case.policy.initial_state(LANES), starts)
    first = case.policy.unroll(observations[:cut], case.policy.initial_state(LANES), starts[:cut])
    second = case.policy.unroll(observations[cut:], first.state, starts[cut:])
    torch.testing.assert_close(torch.cat((first.params, second.params)), whole.params)
    torch.testing.assert_close(torch.cat((first.states, second.states)), whole.states)
    torch.testing.assert_close(torch.cat((first.memory, second.memory)), whole.memory)
    torch.testing.assert_close(second.state, whole.state)


@pytest.mark.parametrize("kind", ["lstm", "attention"])
def test_gradients_reach_back_through_the_memory_but_not_over_a_start(kind: str) -> None:
    case = case_of(kind)
    observations = inputs().requires_grad_()
    starts = no_starts()
    starts[6, 1] = True
    unrolled = case.policy.unroll(observations, case.policy.initial_state(LANES), starts)
    (gradient,) = torch.autograd.grad(unrolled.params[7].square().sum(), observations)
    assert gradient[5, 0].any()
    assert not gradient[5, 1].any()
    assert gradient[6, 1].any()
    assert gradient.isfinite().all()


def test_attention_looks_back_no_further_than_its_window() -> None:
    case = case_of("attention")
    observations = inputs().requires_grad_()
    unrolled = case.policy.unroll(observations, case.policy.initial_state(LANES), no_starts())
    (gradient,) = torch.autograd.grad(unrolled.params[8].square().sum(), observations)
    window = case.policy.config.window
    assert gradient[9 - window].any()
    assert not gradient[: 9 - window].any()


def test_a_policy_without_memory_unrolls_to_its_forward() -> None:
    case = case_of("auto")
    observations = inputs()
    unrolled = case.policy.unroll(observations, case.policy.initial_state(LANES), no_starts())
    assert torch.equal(unrolled.params, case.policy(observations))
    assert unrolled.memory.shape == unrolled.states.shape == (STEPS, LANES, 0)
    assert unrolled.state.shape == (LANES, 0)


def test_a_policy_with_memory_has_no_forward() -> None:
    with pytest.raises(TypeError, match="unroll"):
        case_of("lstm").policy(inputs())
