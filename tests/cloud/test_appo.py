"""APPO: its targets and its loss, against numpy, and what it makes of a bad or an old batch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from cloud_learner.algorithms.appo import APPO
from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import AppoConfig
from cloud_learner.models.actor_critic import ActorCritic, build_model
from cloud_learner.training.replay import Batch
from shoal.errors import ConfigError
from shoal.spaces import Discrete, EnvSpec, Space, unbounded

STEPS, LANES = 6, 3
PLAIN = AppoConfig(normalize_advantages=False, entropy_coef=0.0, value_loss="mse", gamma=0.9)


def model_for(action: Space, seed: int = 0) -> ActorCritic:
    model = build_model(EnvSpec("Test-v0", unbounded((4,)), action), hidden=(8,), seed=seed)
    torch.nn.init.normal_(
        model.policy_layers[-1].weight, generator=torch.Generator().manual_seed(seed)
    )
    return model


def make_batch(model: ActorCritic, *, seed: int = 0, drift: float = 0.0) -> Batch:
    """On-policy experience, or off by about `drift` nats an action; with ends of both kinds."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(STEPS + 1, LANES, 4)).astype(np.float32)
    gaussian = model.log_std is not None
    actions = (
        rng.normal(size=(STEPS, LANES, 2)).astype(np.float32)
        if gaussian
        else rng.integers(0, 3, (STEPS, LANES))
    )
    terminated, truncated = np.zeros((2, STEPS, LANES), np.bool_)
    terminated[1, 0] = truncated[3, 2] = True
    with torch.no_grad():
        params = model.distribution_params(torch.from_numpy(observations[:-1]))
        log_probs = model.distribution.log_prob(params, torch.from_numpy(actions)).numpy()
    return Batch(
        observations=observations,
        actions=actions,
        log_probs=(log_probs + drift * rng.normal(size=(STEPS, LANES))).astype(np.float32),
        rewards=rng.normal(size=(STEPS, LANES)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        final_index=np.array([1 * LANES + 0, 3 * LANES + 2], np.int32),
        final_observations=rng.normal(size=(2, 4)).astype(np.float32),
        lags=np.zeros(LANES, np.int64),
        positions=(1,),
    )


@pytest.fixture(params=[Discrete(3), unbounded((2,))], ids=["discrete", "box"])
def model(request: pytest.FixtureRequest) -> ActorCritic:
    return model_for(request.param)


def test_at_lag_0_it_is_ppo(model: ActorCritic) -> None:
    batch = make_batch(model)
    algorithm = APPO(PLAIN)
    targets = algorithm.prepare(model, batch)
    unit = math.sqrt(10.0)
    with torch.no_grad():
        values = unit * model.value(torch.from_numpy(batch.observations)).numpy()
        finals = unit * model.value(torch.from_numpy(batch.final_observations)).numpy()
    follow = values[1:].copy()
    follow[1, 0], follow[3, 2] = 0.0, finals[1]
    advantages, running = np.zeros((STEPS, LANES)), np.zeros(LANES)
    for t in reversed(range(STEPS)):
        ends = batch.terminated[t] | batch.truncated[t]
        delta = batch.rewards[t] + 0.9 * follow[t] - values[t]
        running = delta + 0.9 * PLAIN.trace_lambda * ~ends * running
        advantages[t] = running
    np.testing.assert_allclose(targets.columns["costs"], -advantages.ravel(), atol=1e-4)
    np.testing.assert_allclose(
        targets.columns["critic_targets"], (values[:-1] + advantages).ravel() / unit, atol=1e-4
    )
    loss = algorithm.loss(model, targets.columns)
    assert loss.metrics["policy_loss"].item() == pytest.approx(-advantages.mean(), abs=1e-4)
    assert targets.metrics["kl_staleness"].item() == pytest.approx(0.0, abs=1e-6)


def test_the_first_gradient_is_the_policy_gradient(model: ActorCritic) -> None:
    batch = make_batch(model, drift=0.5)
    config = replace(PLAIN, value_coef=0.0)
    targets = APPO(config).prepare(model, batch)
    parameters = list(model.policy.parameters())
    ours = torch.autograd.grad(APPO(config).loss(model, targets.columns).total, parameters)
    params = model.distribution_params(torch.from_numpy(batch.observations[:-1]))
    log_probs = model.distribution.log_prob(params, torch.from_numpy(batch.actions)).ravel()
    plain = torch.autograd.grad((log_probs * targets.columns["costs"]).mean(), parameters)
    for got, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)


def test_importance_weights_take_behaviour_to_proximal_and_are_bounded() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model)
    doubled = replace(batch, log_probs=batch.log_probs + math.log(2.0))  # ratio 1/2
    halved = replace(batch, log_probs=batch.log_probs - math.log(2.0))  # ratio 2, bounded to 1
    config = replace(PLAIN, trace_lambda=0.0)  # no corrections from later steps
    base, half, full = (
        APPO(config).prepare(model, b).columns["costs"] for b in (batch, doubled, halved)
    )
    torch.testing.assert_close(half, base / 2.0, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(full, base, rtol=1e-4, atol=1e-6)


def test_clipping_stops_the_gradient_once_an_action_gained_enough() -> None:
    model = model_for(Discrete(3))
    algorithm = APPO(replace(PLAIN, value_coef=0.0))
    columns = dict(algorithm.prepare(model, make_batch(model)).columns)
    columns["proximal"] = columns["proximal"] - 1.0  # now e times as likely as then
    parameters = list(model.policy.parameters())

    def norm(cost: float) -> float:
        costs = torch.full_like(columns["costs"], cost)
        total = algorithm.loss(model, columns | {"costs": costs}).total
        return sum(float(g.norm()) for g in torch.autograd.grad(total, parameters))

    assert norm(-1.0) == 0.0
    assert norm(1.0) > 0.0


def test_dual_clip_bounds_the_loss_of_a_bad_action_that_grew_likely() -> None:
    model = model_for(Discrete(3))
    algorithm = APPO(replace(PLAIN, value_coef=0.0, dual_clip=3.0))
    columns = dict(algorithm.prepare(model, make_batch(model)).columns)
    columns |= {
        "proximal": columns["proximal"] - 5.0,
        "costs": torch.full_like(columns["costs"], 2.0),
    }
    assert algorithm.loss(model, columns).total.item() == pytest.approx(6.0)


def test_the_entropy_bonus_is_subtracted() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model)
    without, with_bonus = APPO(PLAIN), APPO(replace(PLAIN, entropy_coef=0.5))
    targets = without.prepare(model, batch)
    entropy = without.review(model, targets)["entropy"]
    gap = without.loss(model, targets.columns).total - with_bonus.loss(model, targets.columns).total
    torch.testing.assert_close(gap, 0.5 * entropy)


@pytest.mark.parametrize("kind", ["mse", "huber", "clipped"])
def test_every_value_loss_is_zero_at_its_target_and_positive_off_it(kind: str) -> None:
    model = model_for(Discrete(3))
    algorithm = APPO(replace(PLAIN, value_loss=kind))
    columns = dict(algorithm.prepare(model, make_batch(model)).columns)
    off = algorithm.loss(model, columns).metrics["value_loss"]
    columns["critic_targets"] = columns["critic_values"]
    at = algorithm.loss(model, columns).metrics["value_loss"]
    assert at.item() == pytest.approx(0.0, abs=1e-9)
    assert off.item() > 0.0


def test_normalized_advantages_have_no_mean_and_unit_spread() -> None:
    model = model_for(Discrete(3))
    config = replace(PLAIN, normalize_advantages=True)
    costs = APPO(config).prepare(model, make_batch(model)).columns["costs"]
    assert costs.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert costs.std(correction=0).item() == pytest.approx(1.0, abs=1e-4)


def test_impossible_behaviour_probabilities_stay_finite() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model)
    for log_prob in (-1e30, 1e30):
        old = replace(batch, log_probs=np.full_like(batch.log_probs, log_prob))
        targets = APPO(AppoConfig()).prepare(model, old)
        assert all(torch.isfinite(column).all() for column in targets.columns.values())
        assert torch.isfinite(APPO(AppoConfig()).loss(model, targets.columns).total)


def test_a_batch_without_any_end_of_an_episode_is_fine() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model)
    none = np.zeros((STEPS, LANES), np.bool_)
    batch = replace(
        batch,
        terminated=none,
        truncated=none,
        final_index=np.empty(0, np.int32),
        final_observations=np.empty((0, 4), np.float32),
    )
    targets = APPO(PLAIN).prepare(model, batch)
    assert torch.isfinite(targets.columns["costs"]).all()


def test_batches_may_be_read_only_and_are_not_changed() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model)
    before = {
        name: getattr(batch, name).copy() for name in ("observations", "rewards", "log_probs")
    }
    for name in before:
        getattr(batch, name).setflags(write=False)
    APPO(PLAIN).prepare(model, batch)
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(batch, name), array)


def test_is_found_by_its_dotted_path() -> None:
    assert isinstance(load_algorithm("cloud_learner.algorithms.appo:APPO", AppoConfig()), APPO)


@pytest.mark.parametrize(
    "path",
    [
        "cloud_learner.algorithms.appo:PPO",
        "no.such.module:APPO",
        ":APPO",
        "builtins:dict",
    ],
)
def test_a_path_that_names_no_algorithm_is_a_clear_error(path: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.algorithm"):
        load_algorithm(path, AppoConfig())
