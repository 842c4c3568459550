"""V-trace, against a loop that is written as the paper reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cloud_learner.algorithms.vtrace import VTrace, vtrace

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Inputs `[T, B]`."""

    values: Floats
    next_values: Floats
    rewards: Floats
    terminated: Bools
    truncated: Bools
    ratios: Floats


def random_case(seed: int, steps: int = 12, lanes: int = 3, ends: float = 0.2) -> Case:
    rng = np.random.default_rng(seed)
    shape = (steps, lanes)
    terminated = rng.random(shape) < ends / 2
    truncated = (rng.random(shape) < ends / 2) & ~terminated
    values, last = rng.normal(size=shape), rng.normal(size=(1, lanes))
    next_values = np.concatenate((values[1:], last))
    done = terminated | truncated
    next_values[done] = rng.normal(size=int(done.sum()))
    rewards, ratios = rng.normal(size=shape), np.exp(rng.normal(size=shape))
    return Case(values, next_values, rewards, terminated, truncated, ratios)


def ours(case: Case, **options: float) -> VTrace:
    def tensor(array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array)

    return vtrace(
        values=tensor(case.values),
        next_values=tensor(case.next_values),
        rewards=tensor(case.rewards),
        terminated=tensor(case.terminated),
        truncated=tensor(case.truncated),
        ratios=tensor(case.ratios),
        gamma=options.pop("gamma", 0.9),
        **options,
    )


def paper(
    case: Case, *, gamma: float, trace_lambda: float, rho_bar: float, c_bar: float
) -> tuple[Floats, Floats]:
    """Equation 1 of IMPALA as a sum over the rest of the episode, and the advantages."""
    steps, lanes = case.values.shape
    targets, advantages = np.zeros_like(case.values), np.zeros_like(case.values)
    for lane in range(lanes):

        def delta(t: int, lane: int = lane) -> float:
            future = 0.0 if case.terminated[t, lane] else case.next_values[t, lane]
            return float(case.rewards[t, lane] + gamma * future - case.values[t, lane])

        def correction(start: int, lane: int = lane) -> float:
            total, product = 0.0, 1.0
            for t in range(start, steps):
                ratio = case.ratios[t, lane]
                total += product * min(rho_bar, ratio) * delta(t, lane)
                if case.terminated[t, lane] or case.truncated[t, lane]:
                    break
                product *= gamma * trace_lambda * min(c_bar, ratio)
            return total

        for t in range(steps):
            targets[t, lane] = case.values[t, lane] + correction(t)
            ends = case.terminated[t, lane] or case.truncated[t, lane] or t == steps - 1
            later = 0.0 if ends else correction(t + 1)
            advantages[t, lane] = delta(t) + gamma * trace_lambda * later
    return targets, advantages


def gae(case: Case, *, gamma: float, trace_lambda: float) -> Floats:
    """Generalized advantage estimation, the usual backward loop."""
    advantages = np.zeros_like(case.values)
    running = np.zeros(case.values.shape[1])
    for t in reversed(range(len(case.values))):
        future = case.next_values[t] * ~case.terminated[t]
        delta = case.rewards[t] + gamma * future - case.values[t]
        flows = ~(case.terminated[t] | case.truncated[t])
        running = delta + gamma * trace_lambda * flows * running
        advantages[t] = running
    return advantages


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    lanes=st.integers(1, 4),
    ends=st.sampled_from([0.0, 0.3, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    trace_lambda=st.sampled_from([0.0, 0.8, 1.0]),
    rho_bar=st.sampled_from([0.5, 1.0, 4.0]),
    c_bar=st.sampled_from([0.5, 1.0]),
)
def test_equals_the_paper(
    seed: int,
    steps: int,
    lanes: int,
    ends: float,
    gamma: float,
    trace_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> None:
    case = random_case(seed, steps, lanes, ends)
    got = ours(case, gamma=gamma, trace_lambda=trace_lambda, rho_bar=rho_bar, c_bar=c_bar)
    targets, advantages = paper(
        case, gamma=gamma, trace_lambda=trace_lambda, rho_bar=rho_bar, c_bar=c_bar
    )
    np.testing.assert_allclose(got.targets.numpy(), targets, atol=1e-9)
    np.testing.assert_allclose(got.advantages.numpy(), advantages, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_on_policy_it_is_generalized_advantage_estimation(seed: int) -> None:
    case = random_case(seed)
    case = replace(case, ratios=np.ones_like(case.ratios))
    got = ours(case, gamma=0.95, trace_lambda=0.8)
    expected = gae(case, gamma=0.95, trace_lambda=0.8)
    np.testing.assert_allclose(got.advantages.numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(got.targets.numpy(), case.values + expected, atol=1e-12)


def one_step(*, terminated: bool, truncated: bool) -> VTrace:
    return ours(
        Case(
            values=np.array([[1.0]]),
            next_values=np.array([[10.0]]),
            rewards=np.array([[2.0]]),
            terminated=np.array([[terminated]]),
            truncated=np.array([[truncated]]),
            ratios=np.array([[1.0]]),
        ),
        gamma=0.5,
    )


def test_after_a_termination_the_future_is_worth_nothing() -> None:
    assert one_step(terminated=True, truncated=False).targets.item() == 2.0


def test_after_a_truncation_it_is_worth_the_value_of_the_final_observation() -> None:
    assert one_step(terminated=False, truncated=True).targets.item() == 7.0


def test_when_both_come_at_once_termination_decides() -> None:
    assert one_step(terminated=True, truncated=True).targets.item() == 2.0


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_nothing_flows_back_across_the_end_of_an_episode(kind: str) -> None:
    case = random_case(0, steps=6, lanes=1, ends=0.0)
    flags = np.zeros((6, 1), np.bool_)
    flags[2] = True
    case = (
        replace(case, terminated=flags) if kind == "terminated" else replace(case, truncated=flags)
    )
    rewards = case.rewards.copy()
    rewards[3:] += 100.0
    before, after = ours(case), ours(replace(case, rewards=rewards))
    assert torch.equal(before.targets[:3], after.targets[:3])
    assert torch.equal(before.advantages[:3], after.advantages[:3])


def test_values_that_follow_a_termination_are_ignored_even_if_they_are_not_finite() -> None:
    case = random_case(1, steps=4, lanes=1, ends=0.0)
    terminated, next_values = np.zeros((4, 1), np.bool_), case.next_values.copy()
    terminated[3], next_values[3] = True, np.nan
    got = ours(replace(case, terminated=terminated, next_values=next_values))
    assert torch.isfinite(got.targets).all()
