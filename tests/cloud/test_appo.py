"""APPO: its targets and its loss, against numpy, and what it makes of a bad or an old batch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from cloud_learner.algorithms.appo import APPO
from cloud_learner.algorithms.appo_settings import AppoSettings
from cloud_learner.algorithms.impala import IMPALA
from cloud_learner.algorithms.interface import Setup
from cloud_learner.config import NetworkConfig
from cloud_learner.models.actor_critic import ActorCritic, build_actor_critic
from cloud_learner.models.policy import Policy
from cloud_learner.training.experience import Batch
from shoal.spaces import Discrete, EnvSpec, Space, unbounded

STEPS, LANES = 6, 3
PLAIN = APPO.Settings(
    normalize_advantages=False, entropy_coef=0.0, value_loss="mse", gamma=0.9, minibatches=1
)


def setup_for(action: Space, seed: int = 0) -> Setup:
    network = NetworkConfig(hidden=(8,))
    return Setup(EnvSpec("Test-v0", unbounded((4,)), action), network, seed)


def model_for(action: Space, seed: int = 0) -> ActorCritic:
    """A network whose actions depend on what it observes."""
    setup = setup_for(action, seed)
    model = build_actor_critic(setup.spec, setup.network, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    head = [parameter for parameter in model.policy.network.parameters() if parameter.ndim > 1][-1]
    torch.nn.init.normal_(head, generator=generator)
    return model


def algorithm_of(model: ActorCritic, settings: AppoSettings = PLAIN) -> APPO:
    """APPO with the weights of a model."""
    action: Space = Discrete(3) if model.policy.action.discrete else unbounded((2,))
    algorithm = APPO(setup_for(action), settings)
    algorithm.model.load_state_dict(model.state_dict())
    return algorithm


def make_batch(model: ActorCritic, *, seed: int = 0, drift: float = 0.0) -> Batch:
    """On-policy experience, or off by about `drift` nats an action; with ends of both kinds."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(STEPS + 1, LANES, 4)).astype(np.float32)
    gaussian = not model.policy.action.discrete
    actions = (
        rng.normal(size=(STEPS, LANES, 2)).astype(np.float32)
        if gaussian
        else rng.integers(0, 3, (STEPS, LANES))
    )
    terminated, truncated = np.zeros((2, STEPS, LANES), np.bool_)
    terminated[1, 0] = truncated[3, 2] = True
    with torch.no_grad():
        params = model.policy(torch.from_numpy(observations[:-1]))
        log_probs = model.policy.distribution.log_prob(params, torch.from_numpy(actions)).numpy()
    return Batch(
        observations=observations,
        actions=actions,
        log_probs=(log_probs + drift * rng.normal(size=(STEPS, LANES))).astype(np.float32),
        rewards=rng.normal(size=(STEPS, LANES)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        final_index=np.array([1 * LANES + 0, 3 * LANES + 2], np.int32),
        final_observations=rng.normal(size=(2, 4)).astype(np.float32),
        initial_state=np.zeros((LANES, 0), np.float32),
        starts=np.concatenate((np.zeros((1, LANES), np.bool_), (terminated | truncated)[:-1])),
        lags=np.zeros(LANES, np.int64),
        positions=(1,),
    )


@pytest.fixture(params=[Discrete(3), unbounded((2,))], ids=["discrete", "box"])
def model(request: pytest.FixtureRequest) -> ActorCritic:
    return model_for(request.param)


def test_at_lag_0_it_is_ppo(model: ActorCritic) -> None:
    batch = make_batch(model)
    algorithm = algorithm_of(model)
    targets = algorithm.prepare(batch)
    unit = math.sqrt(10.0)
    with torch.no_grad():
        values = unit * model.value(torch.from_numpy(batch.observations), None).numpy()
        finals = unit * model.value(torch.from_numpy(batch.final_observations), None).numpy()
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
    loss = algorithm.loss(targets.columns)
    assert loss.metrics["policy_loss"].item() == pytest.approx(-advantages.mean(), abs=1e-4)
    assert targets.metrics["kl_staleness"].item() == pytest.approx(0.0, abs=1e-6)


def test_a_truncated_episode_is_never_worth_the_next_ones_reset(model: ActorCritic) -> None:
    view, batch = algorithm_of(model)._view, make_batch(model)
    resets, finals = batch.observations.copy(), batch.final_observations.copy()
    resets[1 + 1, 0] += 5.0
    resets[3 + 1, 2] += 5.0
    finals += 5.0
    with torch.no_grad():
        plain = view.look(batch).next_values
        other_reset = view.look(replace(batch, observations=resets)).next_values
        other_final = view.look(replace(batch, final_observations=finals)).next_values
    assert other_reset[3, 2] == plain[3, 2]
    assert other_reset[1, 0] == plain[1, 0]
    assert other_final[3, 2] != plain[3, 2]


def test_the_first_gradient_is_the_policy_gradient(model: ActorCritic) -> None:
    batch = make_batch(model, drift=0.5)
    algorithm = algorithm_of(model, replace(PLAIN, value_coef=0.0))
    targets, policy = algorithm.prepare(batch), algorithm.policy
    parameters = list(policy.parameters())
    ours = torch.autograd.grad(algorithm.loss(targets.columns).total, parameters)
    params = policy(torch.from_numpy(batch.observations[:-1]))
    log_probs = policy.distribution.log_prob(params, torch.from_numpy(batch.actions)).ravel()
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
        algorithm_of(model, config).prepare(b).columns["costs"] for b in (batch, doubled, halved)
    )
    torch.testing.assert_close(half, base / 2.0, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(full, base, rtol=1e-4, atol=1e-6)


def test_clipping_stops_the_gradient_once_an_action_gained_enough() -> None:
    model = model_for(Discrete(3))
    algorithm = algorithm_of(model, replace(PLAIN, value_coef=0.0))
    columns = dict(algorithm.prepare(make_batch(model)).columns)
    columns["proximal"] = columns["proximal"] - 1.0  # now e times as likely as then
    parameters = list(algorithm.policy.parameters())

    def norm(cost: float) -> float:
        costs = torch.full_like(columns["costs"], cost)
        total = algorithm.loss(columns | {"costs": costs}).total
        return sum(float(g.norm()) for g in torch.autograd.grad(total, parameters))

    assert norm(-1.0) == 0.0
    assert norm(1.0) > 0.0


def test_dual_clip_bounds_the_loss_of_a_bad_action_that_grew_likely() -> None:
    model = model_for(Discrete(3))
    algorithm = algorithm_of(model, replace(PLAIN, value_coef=0.0, dual_clip=3.0))
    columns = dict(algorithm.prepare(make_batch(model)).columns)
    columns |= {
        "proximal": columns["proximal"] - 5.0,
        "costs": torch.full_like(columns["costs"], 2.0),
    }
    assert algorithm.loss(columns).total.item() == pytest.approx(6.0)


def test_the_entropy_bonus_is_subtracted() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model)
    without = algorithm_of(model)
    with_bonus = algorithm_of(model, replace(PLAIN, entropy_coef=0.5))
    targets = without.prepare(batch)
    entropy = without.review(targets)["entropy"]
    gap = without.loss(targets.columns).total - with_bonus.loss(targets.columns).total
    torch.testing.assert_close(gap, 0.5 * entropy)


@pytest.mark.parametrize("kind", ["mse", "huber", "clipped"])
def test_every_value_loss_is_zero_at_its_target_and_positive_off_it(kind: str) -> None:
    model = model_for(Discrete(3))
    algorithm = algorithm_of(model, replace(PLAIN, value_loss=kind))
    columns = dict(algorithm.prepare(make_batch(model)).columns)
    off = algorithm.loss(columns).metrics["value_loss"]
    columns["critic_targets"] = columns["critic_values"]
    at = algorithm.loss(columns).metrics["value_loss"]
    assert at.item() == pytest.approx(0.0, abs=1e-9)
    assert off.item() > 0.0


def test_normalized_advantages_have_no_mean_and_unit_spread() -> None:
    model = model_for(Discrete(3))
    config = replace(PLAIN, normalize_advantages=True)
    costs = algorithm_of(model, config).prepare(make_batch(model)).columns["costs"]
    assert costs.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert costs.std(correction=0).item() == pytest.approx(1.0, abs=1e-4)


def test_impossible_behaviour_probabilities_stay_finite() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model)
    for log_prob in (-1e30, 1e30):
        old = replace(batch, log_probs=np.full_like(batch.log_probs, log_prob))
        algorithm = algorithm_of(model, APPO.Settings())
        targets = algorithm.prepare(old)
        assert all(torch.isfinite(column).all() for column in targets.columns.values())
        assert torch.isfinite(algorithm.loss(targets.columns).total)


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
    targets = algorithm_of(model).prepare(batch)
    assert torch.isfinite(targets.columns["costs"]).all()


def test_batches_may_be_read_only_and_are_not_changed() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model)
    before = {
        name: getattr(batch, name).copy() for name in ("observations", "rewards", "log_probs")
    }
    for name in before:
        getattr(batch, name).setflags(write=False)
    algorithm_of(model).prepare(batch)
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(batch, name), array)


def test_a_device_whose_normalizer_was_an_older_one_is_corrected_for_like_any_other_lag() -> None:
    """What it recorded carries its own normalizer, so importance weights are right as they are."""
    network = NetworkConfig(hidden=(8,), normalize=True)
    algorithm = APPO(Setup(setup_for(Discrete(3)).spec, network, 0), PLAIN)
    algorithm.policy.load_state_dict(_eager(algorithm.policy))
    batch = make_batch(algorithm.model)
    assert algorithm.prepare(batch).metrics["kl_staleness"].item() == pytest.approx(0.0, abs=1e-6)
    algorithm.policy.observe(5.0 + 3.0 * batch.observations)
    targets = algorithm.prepare(batch)
    with torch.no_grad():
        params = algorithm.policy(torch.from_numpy(batch.observations[:-1]))
        now = algorithm.policy.distribution.log_prob(params, torch.from_numpy(batch.actions))
    ratios = (now - torch.from_numpy(batch.log_probs)).exp()
    assert targets.metrics["kl_staleness"].item() > 1e-3
    assert targets.metrics["importance_mean"].item() == pytest.approx(
        ratios.mean().item(), rel=1e-4
    )
    torch.testing.assert_close(targets.columns["proximal"], now.reshape(-1))


def test_each_batch_is_shown_to_the_normalizer_once_however_many_passes_are_made() -> None:
    network = NetworkConfig(hidden=(8,), normalize=True)
    settings = APPO.Settings(epochs=3, minibatches=2)
    algorithm = APPO(Setup(setup_for(Discrete(3)).spec, network, 0), settings)
    batch = make_batch(algorithm.model)
    algorithm.learn(batch)
    assert algorithm.policy.normalizer is not None
    assert int(algorithm.policy.normalizer.count) == STEPS * LANES
    again = APPO(Setup(setup_for(Discrete(3)).spec, network, 5), settings)
    again.load_state_dict(algorithm.state_dict())  # and it survives a resume
    other = make_batch(algorithm.model, seed=1)
    assert again.learn(other) == algorithm.learn(other)


def _eager(policy: Policy) -> dict[str, torch.Tensor]:
    """Weights with which actions depend much on what is observed."""
    state = policy.state_dict()
    generator = torch.Generator().manual_seed(0)
    return {
        name: value + torch.randn(value.shape, generator=generator) if value.ndim > 1 else value
        for name, value in state.items()
    }


def test_the_kl_penalty_pulls_back_to_where_the_batch_began() -> None:
    model = model_for(Discrete(3))
    algorithm = algorithm_of(model, replace(PLAIN, kl_coef=2.0))
    columns = algorithm.prepare(make_batch(model)).columns
    still = algorithm.loss(columns)
    assert still.metrics["kl_penalty"].item() == pytest.approx(0.0, abs=1e-6)
    moved = dict(columns) | {"proximal_params": columns["proximal_params"].flip(-1)}
    gap = algorithm.loss(moved).total - still.total
    torch.testing.assert_close(gap, 2.0 * algorithm.loss(moved).metrics["kl_penalty"])
    assert gap.item() > 0.0


@pytest.mark.parametrize(("kl_target", "epochs"), [(1e-9, 1.0), (1e9, 5.0), (None, 5.0)])
def test_passes_stop_once_the_policy_moved_far_enough(
    kl_target: float | None, epochs: float
) -> None:
    model = model_for(Discrete(3))
    settings = replace(PLAIN, kl_target=kl_target, epochs=5, minibatches=2, learning_rate=1e-2)
    assert algorithm_of(model, settings).learn(make_batch(model))["epochs"] == epochs


def test_the_entropy_bonus_fades_with_the_updates() -> None:
    model = model_for(Discrete(3))
    settings = replace(PLAIN, entropy_coef=0.4, final_entropy_coef=0.0, anneal_updates=4, epochs=1)
    algorithm = algorithm_of(model, settings)
    found = []
    for _ in range(5):
        found.append(algorithm._entropy_coef())
        algorithm.learn(make_batch(model))
    assert found == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0])


def test_rewards_are_scaled_for_the_learner_alone() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model)
    before = batch.rewards.copy()
    plain, scaled = algorithm_of(model), algorithm_of(model, replace(PLAIN, reward_scale=0.5))
    halved = replace(batch, rewards=batch.rewards * 0.5)
    wanted = plain.prepare(halved).columns["critic_targets"]
    torch.testing.assert_close(scaled.prepare(batch).columns["critic_targets"], wanted)
    np.testing.assert_array_equal(batch.rewards, before)


def test_impala_is_one_update_a_batch_along_the_plain_v_trace_gradient() -> None:
    model = model_for(Discrete(3))
    batch = make_batch(model, drift=0.5)
    impala = IMPALA(
        setup_for(Discrete(3)), IMPALA.Settings(gamma=0.9, entropy_coef=0.0, value_coef=0.0)
    )
    impala.model.load_state_dict(model.state_dict())
    (columns,) = impala.minibatches(impala.prepare(batch))
    parameters = list(impala.policy.parameters())
    ours = torch.autograd.grad(impala.loss(columns).total, parameters)
    params = impala.policy(columns["observations"])
    log_probs = impala.policy.distribution.log_prob(params, columns["actions"])
    plain = torch.autograd.grad((log_probs * columns["costs"]).mean(), parameters)
    for got, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    impala.learn(batch)
    assert impala.updates == 1


WARMED = replace(PLAIN, init_critic_updates=4, epochs=2, minibatches=1)


def _flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in module.parameters()])


def test_where_the_policy_was_given_the_critic_learns_alone_at_first() -> None:
    model = model_for(Discrete(3))
    algorithm = algorithm_of(model, replace(WARMED, entropy_coef=0.1))
    algorithm.note_given_weights()
    given = _flat(algorithm.policy).clone()
    for seed in range(2):
        before = _flat(algorithm.model.critic).clone()
        algorithm.learn(make_batch(model, seed=seed))
        assert not torch.equal(_flat(algorithm.model.critic), before)
        assert torch.equal(_flat(algorithm.policy), given)
    algorithm.learn(make_batch(model, seed=2))
    # Moments of gradients that were 0 would make the first steps several times as long.
    moved = (_flat(algorithm.policy) - given).abs().max()
    assert 0.0 < moved <= 2 * WARMED.learning_rate * 1.01


def test_a_critics_warm_up_goes_on_from_a_checkpoint_and_a_policy_of_ones_own_needs_none() -> None:
    model = model_for(Discrete(3))
    algorithm = algorithm_of(model, WARMED)
    algorithm.note_given_weights()
    algorithm.learn(make_batch(model))
    again = algorithm_of(model_for(Discrete(3), seed=1), WARMED)
    again.load_state_dict(algorithm.state_dict())
    given = _flat(again.policy).clone()
    again.learn(make_batch(again.model))
    assert torch.equal(_flat(again.policy), given)
    again.learn(make_batch(again.model))
    assert not torch.equal(_flat(again.policy), given)
    fresh = algorithm_of(model_for(Discrete(3)), WARMED)
    before = _flat(fresh.policy).clone()
    fresh.learn(make_batch(fresh.model))
    assert not torch.equal(_flat(fresh.policy), before)
