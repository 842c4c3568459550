"""SAC: its targets against numpy, its temperature, and that it goes on bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cloud_learner.algorithms.arrays import parts_of
from cloud_learner.algorithms.interface import Setup
from cloud_learner.algorithms.sac import SAC, SacSettings
from cloud_learner.config import NetworkConfig
from cloud_learner.training.experience import Fresh, Transitions
from shoal.spaces import Box, EnvSpec, unbounded

ROWS, HALF = 32, 2.0
ACTION = Box(np.full(2, -HALF, np.float32), np.full(2, HALF, np.float32))
SPEC = EnvSpec("Test-v0", unbounded((3,)), ACTION)
SETTINGS = SacSettings(batch_size=ROWS, learning_starts=0)


def new_sac(settings: SacSettings = SETTINGS, seed: int = 0) -> SAC:
    return SAC(Setup(SPEC, NetworkConfig(hidden=(16, 16)), seed), settings)


def transitions(seed: int = 0, rows: int = ROWS) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        observations=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.uniform(-HALF, HALF, (rows, 2)).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        next_observations=rng.normal(size=(rows, 3)).astype(np.float32),
        discounts=np.where(rng.random(rows) < 0.2, 0.0, 0.97).astype(np.float32),
        weights=np.ones(rows, np.float32),
        slots=np.arange(rows),
        stamps=np.arange(rows),
        lags=np.zeros(rows, np.int64),
    )


def mlp(module: torch.nn.Module) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """The layers of a network in plain numpy, in double precision."""
    arrays = [p.detach().numpy().astype(np.float64) for p in module.parameters()]

    def run(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
        for index, (weight, bias) in enumerate(pairs):
            rows = rows @ weight.T + bias
            rows = np.maximum(rows, 0.0) if index < len(pairs) - 1 else rows
        return rows

    return run


def test_the_critics_targets_are_those_of_the_paper() -> None:
    sac, batch = new_sac(replace(SETTINGS, temperature=0.3)), transitions()
    sac.learn(transitions(1))  # so that targets and critics differ
    (columns,) = parts_of(batch, 1)
    noise = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(3))
    got = sac.critic_targets(columns, noise).numpy()
    with torch.no_grad():
        params = sac.policy(columns["next_observations"]).numpy().astype(np.float64)
    mean, log_std = params[:, :2], params[:, 2:]
    inner = mean + np.exp(log_std) * noise.numpy()
    actions = np.tanh(inner)
    log_prob = (-0.5 * noise.numpy() ** 2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)
    log_prob -= np.log(1.0 - actions**2).sum(-1)
    rows = np.concatenate((batch.next_observations.astype(np.float64), actions), -1)
    values = np.min([mlp(target)(rows)[:, 0] for target in sac._targets], axis=0)
    temperature = float(sac._log_temperature.detach().exp())
    wanted = batch.rewards + batch.discounts * (values - temperature * log_prob)
    np.testing.assert_allclose(got, wanted, atol=1e-5, rtol=1e-5)


def test_after_a_termination_a_target_is_the_reward_alone() -> None:
    sac = new_sac()
    (columns,) = parts_of(replace(transitions(), discounts=np.zeros(ROWS, np.float32)), 1)
    targets = sac.critic_targets(columns, torch.zeros(ROWS, 2))
    torch.testing.assert_close(targets, columns["rewards"])


def test_targets_follow_the_critics_slowly() -> None:
    sac = new_sac(replace(SETTINGS, tau=0.25))
    before = sac._target_flat.detach().clone()
    sac.learn(transitions())
    wanted = before + 0.25 * (sac._critic_optimiser.flat.detach() - before)
    torch.testing.assert_close(sac._target_flat.detach(), wanted)
    first = next(iter(sac._targets.parameters()))
    assert torch.equal(first.reshape(-1), sac._target_flat[: first.numel()])  # they are views


@pytest.mark.parametrize(("wanted", "grows"), [(5.0, True), (-50.0, False)])
def test_the_temperature_rises_while_entropy_is_too_low_and_falls_while_it_is_too_high(
    wanted: float,
    grows: bool,  # noqa: FBT001 - a parameter
) -> None:
    sac = new_sac(replace(SETTINGS, target_entropy=wanted, learning_rate=1e-2))
    for seed in range(3):
        values = sac.learn(transitions(seed))
    assert (values["temperature"] > 1.0) is grows


def test_the_temperature_stays_where_it_is_fixed() -> None:
    sac = new_sac(replace(SETTINGS, tune_temperature=False, temperature=0.2))
    assert sac.learn(transitions())["temperature"] == pytest.approx(0.2)


def test_importance_weights_are_applied_by_default() -> None:
    weighed = replace(transitions(), weights=np.linspace(0.01, 1.0, ROWS, dtype=np.float32))
    plain, other = new_sac(), new_sac()
    assert plain.learn(transitions())["critic_loss"] > other.learn(weighed)["critic_loss"]
    assert not torch.equal(plain._critic_optimiser.flat, other._critic_optimiser.flat)


def test_many_gradient_steps_use_every_row_once() -> None:
    many, one = new_sac(replace(SETTINGS, gradient_steps=4)), new_sac()
    batch = transitions(rows=4 * ROWS)
    many.learn(batch)
    for columns in parts_of(batch, 4):
        one._update(columns, [])
    assert many.updates == 4
    assert many.errors is not None
    assert many.errors.shape == (4 * ROWS,)
    torch.testing.assert_close(many._critic_optimiser.flat, one._critic_optimiser.flat)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_changes_no_critic_and_is_counted(value: float) -> None:
    sac, batch = new_sac(), transitions()
    batch.rewards[3] = value
    before = sac._critic_optimiser.flat.detach().clone()
    sac.learn(batch)
    assert torch.equal(sac._critic_optimiser.flat.detach(), before)
    assert sac.skipped >= 1
    assert all(torch.isfinite(p).all() for p in sac.policy.parameters())


def test_goes_on_bit_for_bit_from_its_state() -> None:
    settings = replace(SETTINGS, normalize_rewards=True)
    network = NetworkConfig(hidden=(16,), normalize=True)
    straight, other = (SAC(Setup(SPEC, network, seed), settings) for seed in (0, 9))
    for sac in (straight, other):
        _see(sac, 0)
        sac.learn(transitions(0))
    other.load_state_dict(straight.state_dict())
    for seed in range(1, 4):
        for sac in (straight, other):
            _see(sac, seed)
        assert straight.learn(transitions(seed)) == other.learn(transitions(seed))
    for ours, theirs in zip(straight.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_where_the_policy_was_given_the_critics_learn_alone_at_first() -> None:
    sac = new_sac(replace(SETTINGS, init_critic_updates=2, gradient_steps=1))
    sac.note_given_weights()

    def flat(module: torch.nn.Module) -> torch.Tensor:
        return torch.cat([each.detach().reshape(-1) for each in module.parameters()])

    given, temperature = flat(sac.policy).clone(), sac.state_dict()["log_temperature"]
    for seed in range(2):
        before = flat(sac._critics).clone()
        sac.learn(transitions(seed))
        assert not torch.equal(flat(sac._critics), before)
        assert torch.equal(flat(sac.policy), given)
        assert torch.equal(sac.state_dict()["log_temperature"], temperature)
    assert sac.updates == 2  # devices are told new versions all the while
    sac.learn(transitions(2))
    moved = (flat(sac.policy) - given).abs()
    assert 0.0 < moved.max() <= SETTINGS.learning_rate * 1.01


def _see(sac: SAC, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(8, 2)).astype(np.float32)
    observations = rng.normal(2.0, 3.0, (8, 2, 3)).astype(np.float32)
    sac.observe(Fresh(observations, rewards, rng.random((8, 2)) < 0.2))


def test_what_devices_see_is_what_observations_are_normalized_by() -> None:
    sac = SAC(Setup(SPEC, NetworkConfig(hidden=(8,), normalize=True), 0), SETTINGS)
    seen = np.random.default_rng(0).normal(3.0, 2.0, (500, 2, 3)).astype(np.float32)
    sac.observe(Fresh(seen, np.zeros((500, 2), np.float32), np.zeros((500, 2), np.bool_)))
    normalizer = sac.policy.normalizer
    assert normalizer is not None
    normalized = normalizer(torch.from_numpy(seen.reshape(-1, 3))).numpy()
    np.testing.assert_allclose(normalized.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(normalized.std(0), 1.0, atol=1e-3)


def test_learns_the_best_action_of_a_bandit() -> None:
    settings = replace(SETTINGS, learning_rate=3e-3, temperature=0.02, tune_temperature=False)
    sac = new_sac(settings)
    for seed in range(300):
        batch = transitions(seed, rows=128)
        gap = batch.actions - np.array([0.8, -0.5], np.float32)
        rewards = -np.square(gap).sum(-1)
        sac.learn(replace(batch, rewards=rewards, discounts=np.zeros(128, np.float32)))
    with torch.no_grad():
        params = sac.policy(torch.from_numpy(transitions(999).observations))
        best = sac.policy.distribution.mode(params).mean(0)
    np.testing.assert_allclose(best, [0.8, -0.5], atol=0.25)
