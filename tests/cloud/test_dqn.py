"""DQN: its targets against numpy, its exploration, its priorities, and an exact resume."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cloud_learner.algorithms.arrays import parts_of
from cloud_learner.algorithms.dqn import DQN, DqnSettings
from cloud_learner.algorithms.interface import Setup
from cloud_learner.config import NetworkConfig
from cloud_learner.training.experience import Fresh, Transitions
from shoal.spaces import Discrete, EnvSpec, unbounded

ROWS = 32
SPEC = EnvSpec("Test-v0", unbounded((4,)), Discrete(3))
SETTINGS = DqnSettings(
    batch_size=ROWS,
    gradient_steps=1,
    learning_starts=0,
    target_interval=5,
    tau=1.0,
    normalize_rewards=False,
)


def new_dqn(settings: DqnSettings = SETTINGS, seed: int = 0) -> DQN:
    return DQN(Setup(SPEC, NetworkConfig(hidden=(16, 16)), seed), settings)


def transitions(seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        observations=rng.normal(size=(ROWS, 4)).astype(np.float32),
        actions=rng.integers(0, 3, ROWS),
        rewards=rng.normal(size=ROWS).astype(np.float32),
        next_observations=rng.normal(size=(ROWS, 4)).astype(np.float32),
        discounts=np.where(rng.random(ROWS) < 0.2, 0.0, 0.9).astype(np.float32),
        weights=np.ones(ROWS, np.float32),
        slots=np.arange(ROWS),
        stamps=np.arange(ROWS),
        lags=np.zeros(ROWS, np.int64),
    )


def fresh(steps: int = 8) -> Fresh:
    ends = np.zeros((steps, 2), np.bool_)
    return Fresh(np.zeros((steps, 2, 4), np.float32), np.ones((steps, 2), np.float32), ends)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_the_targets_are_those_of_the_papers(double: bool, dueling: bool) -> None:  # noqa: FBT001 - parameters
    dqn, batch = new_dqn(replace(SETTINGS, double=double, dueling=dueling)), transitions()
    for seed in range(1, 4):
        dqn.learn(transitions(seed))  # so that target and network differ
    (columns,) = parts_of(batch, 1)
    got = dqn.targets(columns).numpy()
    with torch.no_grad():
        values = dqn.policy(columns["next_observations"]).numpy()
        frozen = dqn._target(columns["next_observations"]).numpy()
    assert not np.allclose(values, frozen)
    for row in range(ROWS):
        best = int(np.argmax(values[row] if double else frozen[row]))
        wanted = float(batch.rewards[row]) + float(batch.discounts[row]) * float(frozen[row, best])
        assert got[row] == pytest.approx(wanted, abs=1e-5)


def test_after_a_termination_a_target_is_the_reward_alone() -> None:
    (columns,) = parts_of(replace(transitions(), discounts=np.zeros(ROWS, np.float32)), 1)
    torch.testing.assert_close(new_dqn().targets(columns), columns["rewards"])


def test_the_errors_are_those_of_each_row_before_its_update() -> None:
    dqn, batch = new_dqn(), transitions()
    (columns,) = parts_of(batch, 1)
    with torch.no_grad():
        values = dqn.policy(columns["observations"]).numpy()
    wanted = np.abs(values[np.arange(ROWS), batch.actions] - dqn.targets(columns).numpy())
    dqn.learn(batch)
    assert dqn.errors is not None
    np.testing.assert_allclose(dqn.errors, wanted, atol=1e-6)


def test_importance_weights_are_applied_by_default() -> None:
    weighed = replace(transitions(), weights=np.linspace(0.01, 1.0, ROWS, dtype=np.float32))
    plain, other = new_dqn(), new_dqn()
    assert plain.learn(transitions())["value_loss"] > other.learn(weighed)["value_loss"]


def test_the_target_is_a_copy_at_every_interval_and_only_then() -> None:
    dqn = new_dqn()
    start = dqn._target_flat.detach().clone()
    for seed in range(4):
        dqn.learn(transitions(seed))
    assert torch.equal(dqn._target_flat.detach(), start)
    dqn.learn(transitions(4))
    assert torch.equal(dqn._target_flat.detach(), dqn._optimiser.flat.detach())


def test_epsilon_falls_with_environment_steps_and_travels_with_the_policy() -> None:
    dqn = new_dqn(replace(SETTINGS, epsilon_start=1.0, epsilon_final=0.1, epsilon_steps=32))
    assert dqn.policy.epsilon == 1.0
    dqn.observe(fresh())
    assert dqn.policy.epsilon == pytest.approx(0.55)
    for _ in range(3):
        dqn.observe(fresh())
    assert dqn.policy.epsilon == pytest.approx(0.1)


def test_what_devices_see_is_what_observations_are_normalized_by() -> None:
    dqn = DQN(Setup(SPEC, NetworkConfig(hidden=(8,), normalize=True), 0), SETTINGS)
    seen = np.random.default_rng(0).normal(3.0, 2.0, (500, 2, 4)).astype(np.float32)
    dqn.observe(replace(fresh(500), observations=seen))
    for network in (dqn.policy, dqn._target):
        normalizer = network.normalizer
        assert normalizer is not None
        normalized = normalizer(torch.from_numpy(seen.reshape(-1, 4))).numpy()
        np.testing.assert_allclose(normalized.mean(0), 0.0, atol=1e-3)
        np.testing.assert_allclose(normalized.std(0), 1.0, atol=1e-3)


def test_devices_are_asked_for_priorities_where_they_can_tell_them() -> None:
    prioritized = replace(SETTINGS, priority_alpha=0.6, gamma=0.95)
    assert new_dqn().behaviour.priority_gamma == 0.0
    assert new_dqn(prioritized).behaviour.priority_gamma == 0.95
    assert new_dqn(replace(prioritized, reward_scale=0.1)).behaviour.priority_gamma == 0.0
    assert new_dqn(replace(prioritized, normalize_rewards=True)).behaviour.priority_gamma == 0.0


def test_a_reward_that_is_not_finite_changes_nothing_and_is_counted() -> None:
    dqn, batch = new_dqn(), transitions()
    batch.rewards[0] = np.nan
    before = dqn._optimiser.flat.detach().clone()
    dqn.learn(batch)
    assert torch.equal(dqn._optimiser.flat.detach(), before)
    assert (dqn.updates, dqn.skipped) == (0, 1)


def test_goes_on_bit_for_bit_from_its_state() -> None:
    settings = replace(SETTINGS, normalize_rewards=True, learning_rate=1e-2)
    straight, other = new_dqn(settings), new_dqn(settings, seed=7)
    for seed in range(6):
        straight.observe(fresh())
        straight.learn(transitions(seed))
    other.load_state_dict(straight.state_dict())
    assert other.policy.epsilon == straight.policy.epsilon < 1.0
    for seed in range(6, 13):
        for dqn in (straight, other):
            dqn.observe(fresh())
        assert straight.learn(transitions(seed)) == other.learn(transitions(seed))
    assert torch.equal(straight._optimiser.flat, other._optimiser.flat)
    assert torch.equal(straight._target_flat, other._target_flat)
