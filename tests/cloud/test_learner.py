"""The learner: it learns, it survives bad numbers, and it goes on bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from cloud_learner.algorithms.appo import APPO
from cloud_learner.algorithms.interface import Loss, Targets
from cloud_learner.config import AppoConfig, OptimiserConfig
from cloud_learner.models.actor_critic import ActorCritic, build_model
from cloud_learner.training.learner import Learner
from cloud_learner.training.replay import Batch
from shoal.errors import CheckpointError
from shoal.spaces import Discrete, EnvSpec, unbounded

SPEC = EnvSpec("Test-v0", unbounded((4,)), Discrete(2))
CONFIG = OptimiserConfig(learning_rate=1e-2, epochs=2, minibatches=3, max_grad_norm=0.5)


class Poisoned:
    """APPO whose loss is not finite whenever `loss` is called for the n-th time."""

    def __init__(self, bad_calls: set[int], value: float = float("nan")) -> None:
        self._inner = APPO(AppoConfig())
        self._bad_calls = bad_calls
        self._value = value
        self._calls = 0

    def prepare(self, model: ActorCritic, batch: Batch) -> Targets:
        return self._inner.prepare(model, batch)

    def loss(self, model: ActorCritic, columns: Mapping[str, torch.Tensor]) -> Loss:
        loss = self._inner.loss(model, columns)
        self._calls += 1
        bad = self._calls in self._bad_calls
        return replace(loss, total=loss.total * self._value) if bad else loss

    def review(self, model: ActorCritic, targets: Targets) -> Mapping[str, torch.Tensor]:
        return self._inner.review(model, targets)


def new_learner(seed: int = 0, config: OptimiserConfig = CONFIG) -> Learner:
    model = build_model(SPEC, hidden=(16, 16), seed=seed)
    return Learner(model, APPO(AppoConfig()), seed=seed, config=config)


def weights_of(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in learner.model.parameters()]).clone()


def bandit_batch(learner: Learner, seed: int) -> Batch:
    """Action 1 is right where the first feature is positive, action 0 elsewhere."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(17, 8, 4)).astype(np.float32)
    with torch.no_grad():
        params = learner.model.distribution_params(torch.from_numpy(observations[:-1]))
        gumbel = torch.from_numpy(rng.gumbel(size=(16, 8, 2)).astype(np.float32))
        actions = (params + gumbel).argmax(-1)
        log_probs = learner.model.distribution.log_prob(params, actions)
    right = (observations[:-1, :, 0] > 0.0) == (actions.numpy() == 1)
    done = np.ones((16, 8), np.bool_)
    return Batch(
        observations=observations,
        actions=actions.numpy(),
        log_probs=log_probs.numpy(),
        rewards=right.astype(np.float32),
        terminated=done,
        truncated=~done,
        final_index=np.arange(128, dtype=np.int32),
        final_observations=np.zeros((128, 4), np.float32),
        lags=np.arange(8, dtype=np.int64),
        positions=(seed,),
    )


def test_learns_what_is_rewarded() -> None:
    learner = new_learner()
    for seed in range(40):
        learner.step(bandit_batch(learner, seed))
    assert bandit_batch(learner, 99).rewards.mean() > 0.9


def test_counts_optimiser_updates() -> None:
    learner = new_learner()
    metrics = learner.step(bandit_batch(learner, 0))
    assert learner.updates == metrics.updates == CONFIG.epochs * CONFIG.minibatches


def test_says_what_it_did() -> None:
    learner = new_learner()
    values = learner.step(bandit_batch(learner, 0)).values
    assert values["lag_mean"] == 3.5
    assert values["lag_max"] == 7.0
    assert {
        "policy_loss",
        "value_loss",
        "entropy",
        "kl",
        "kl_staleness",
        "clip_fraction",
        "explained_variance",
        "gradient_norm",
        "learning_rate",
        "skipped",
        "step_ms",
        "transitions_per_s",
    } <= values.keys()
    assert all(np.isfinite(value) for value in values.values())


def test_every_row_is_used_once_an_epoch_whatever_the_number_of_minibatches() -> None:
    learner = new_learner(config=replace(CONFIG, epochs=1, minibatches=7))
    targets = Targets(columns={"row": torch.arange(100)}, metrics={})
    rows = torch.cat([columns["row"] for columns in learner._minibatches(targets)])
    assert sorted(rows.tolist()) == list(range(100))


def test_more_minibatches_than_rows_is_one_row_each() -> None:
    learner = new_learner(config=replace(CONFIG, minibatches=50))
    targets = Targets(columns={"row": torch.arange(3)}, metrics={})
    assert [len(columns["row"]) for columns in learner._minibatches(targets)] == [1, 1, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_minibatch_that_is_not_finite_changes_nothing_and_is_counted(value: float) -> None:
    model = build_model(SPEC, hidden=(16, 16))
    learner = Learner(model, Poisoned(set(range(1, 7)), value), seed=0, config=CONFIG)
    before = weights_of(learner)
    metrics = learner.step(bandit_batch(learner, 0))
    assert torch.equal(weights_of(learner), before)
    assert (learner.updates, learner.skipped) == (0, 6)
    assert metrics.values["skipped"] == 6.0


def test_training_goes_on_after_a_minibatch_that_is_not_finite() -> None:
    model = build_model(SPEC, hidden=(16, 16))
    learner = Learner(model, Poisoned({2}), seed=0, config=CONFIG)
    metrics = learner.step(bandit_batch(learner, 0))
    assert (learner.updates, learner.skipped) == (5, 1)
    assert torch.isfinite(weights_of(learner)).all()
    assert np.isfinite(metrics.values["policy_loss"])


def test_observations_that_are_not_finite_cannot_poison_the_weights() -> None:
    learner = new_learner()
    batch = bandit_batch(learner, 0)
    batch.observations[3, 2, 1] = np.nan
    before = weights_of(learner)
    learner.step(batch)
    assert torch.equal(weights_of(learner), before)


def test_the_gradient_is_clipped_to_its_norm() -> None:
    big = new_learner(config=replace(CONFIG, max_grad_norm=1e9))
    small = new_learner(config=replace(CONFIG, max_grad_norm=1e-12))
    for learner in (big, small):
        learner.step(bandit_batch(learner, 0))
    start = weights_of(new_learner())
    moved_big, moved_small = (weights_of(learner) - start for learner in (big, small))
    assert moved_small.norm() < 1e-3 * moved_big.norm()  # Adam's eps outweighs what is left


def test_the_models_parameters_are_views_of_what_is_optimised() -> None:
    learner = new_learner()
    learner.step(bandit_batch(learner, 0))
    assert torch.equal(weights_of(learner), learner.state_dict()["weights"])


def test_goes_on_bit_for_bit_from_its_state() -> None:
    straight = new_learner()
    for seed in range(3):
        straight.step(bandit_batch(straight, seed))
    state = straight.state_dict()
    other = new_learner(seed=77)
    other.step(bandit_batch(other, 5))
    other.load_state_dict(state)
    for seed in range(3, 6):
        batch = bandit_batch(straight, seed)
        ours, theirs = straight.step(batch), other.step(batch)
        assert ours.values["policy_loss"] == theirs.values["policy_loss"]
    assert torch.equal(weights_of(straight), weights_of(other))
    assert straight.updates == other.updates
    for name, value in straight.state_dict().items():
        resumed = other.state_dict()[name]  # type: ignore[literal-required]
        same = torch.equal(value, resumed) if isinstance(value, torch.Tensor) else value == resumed
        assert same, name


def test_a_state_can_be_taken_and_restored_before_the_first_step() -> None:
    first, second = new_learner(), new_learner(seed=9)
    second.load_state_dict(first.state_dict())
    batch = bandit_batch(first, 0)
    first.step(batch)
    second.step(batch)
    assert torch.equal(weights_of(first), weights_of(second))


def test_a_state_does_not_change_with_later_training() -> None:
    learner = new_learner()
    learner.step(bandit_batch(learner, 0))
    state = learner.state_dict()
    before = {n: v.clone() for n, v in state.items() if isinstance(v, torch.Tensor)}
    learner.step(bandit_batch(learner, 1))
    for name, value in before.items():
        assert torch.equal(state[name], value)  # type: ignore[literal-required]


def test_a_state_of_another_network_is_refused() -> None:
    small = Learner(
        build_model(SPEC, hidden=(4,)), APPO(AppoConfig()), seed=0, config=OptimiserConfig()
    )
    with pytest.raises(CheckpointError, match=r"training\.hidden"):
        small.load_state_dict(new_learner().state_dict())


def test_the_update_counter_only_moves_forward_on_resume() -> None:
    learner = new_learner()
    learner.resume_at(120)
    learner.resume_at(7)
    assert learner.updates == 120


def test_the_learning_rate_moves_to_its_final_value_and_stays() -> None:
    config = replace(
        CONFIG, learning_rate=1e-2, final_learning_rate=1e-3, anneal_updates=12, epochs=2
    )
    learner = new_learner(config=config)
    rates = [learner.step(bandit_batch(learner, s)).values["learning_rate"] for s in range(4)]
    assert rates == pytest.approx([1e-2, 5.5e-3, 1e-3, 1e-3])


def test_the_global_generator_has_no_say() -> None:
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        learner = new_learner()
        learner.step(bandit_batch(learner, 0))
        results.append(weights_of(learner))
    assert torch.equal(results[0], results[1])
