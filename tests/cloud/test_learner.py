"""The learner: it learns, it survives bad numbers, and it goes on bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from cloud_learner.algorithms.appo import APPO, Loss, Targets
from cloud_learner.algorithms.appo_settings import AppoSettings
from cloud_learner.algorithms.interface import Algorithm, Behaviour, Setup
from cloud_learner.config import NetworkConfig
from cloud_learner.training.experience import Batch
from cloud_learner.training.learner import Learner
from shoal.errors import CheckpointError
from shoal.spaces import Discrete, EnvSpec, unbounded

SPEC = EnvSpec("Test-v0", unbounded((4,)), Discrete(2))
CONFIG = AppoSettings(learning_rate=1e-2, epochs=2, minibatches=3, max_grad_norm=0.5)
NAME = "cloud_learner.algorithms.appo:APPO"


class Poisoned(APPO):
    """APPO whose loss is not finite whenever `loss` is called for the n-th time."""

    bad_calls: frozenset[int] = frozenset()
    value = float("nan")
    calls = 0

    def loss(self, columns: Mapping[str, torch.Tensor]) -> Loss:
        loss = super().loss(columns)
        self.calls += 1
        bad = self.calls in self.bad_calls
        return replace(loss, total=loss.total * self.value) if bad else loss


def setup_of(seed: int = 0, hidden: tuple[int, ...] = (16, 16)) -> Setup:
    return Setup(SPEC, NetworkConfig(hidden=hidden), seed)


def new_learner(
    seed: int = 0, config: AppoSettings = CONFIG, hidden: tuple[int, ...] = (16, 16)
) -> Learner:
    return Learner(APPO(setup_of(seed, hidden), config), name=NAME)


def poisoned(bad_calls: set[int], value: float = float("nan")) -> Learner:
    algorithm = Poisoned(setup_of(), CONFIG)
    algorithm.bad_calls, algorithm.value = frozenset(bad_calls), value
    return Learner(algorithm, name=NAME)


def appo(learner: Learner) -> APPO:
    assert isinstance(learner.algorithm, APPO)
    return learner.algorithm


def weights_of(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in appo(learner).model.parameters()]).clone()


def bandit_batch(learner: Learner, seed: int) -> Batch:
    """Action 1 is right where the first feature is positive, action 0 elsewhere."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(17, 8, 4)).astype(np.float32)
    with torch.no_grad():
        params = learner.policy(torch.from_numpy(observations[:-1]))
        gumbel = torch.from_numpy(rng.gumbel(size=(16, 8, 2)).astype(np.float32))
        actions = (params + gumbel).argmax(-1)
        log_probs = learner.policy.distribution.log_prob(params, actions)
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
        initial_state=np.zeros((8, 0), np.float32),
        starts=np.concatenate((np.zeros((1, 8), np.bool_), done[:-1])),
        lags=np.arange(8, dtype=np.int64),
        positions=(seed,),
    )


def states_equal(ours: object, theirs: object) -> bool:
    """Whether two states are the same, bit for bit."""
    if isinstance(ours, torch.Tensor):
        return isinstance(theirs, torch.Tensor) and torch.equal(ours, theirs)
    if isinstance(ours, Mapping):
        assert isinstance(theirs, Mapping)
        same = ours.keys() == theirs.keys()
        return same and all(states_equal(ours[key], theirs[key]) for key in ours)
    return ours == theirs


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
    rows = torch.cat([columns["row"] for columns in appo(learner).minibatches(targets)])
    assert sorted(rows.tolist()) == list(range(100))


def test_more_minibatches_than_rows_is_one_row_each() -> None:
    learner = new_learner(config=replace(CONFIG, minibatches=50))
    targets = Targets(columns={"row": torch.arange(3)}, metrics={})
    assert [len(columns["row"]) for columns in appo(learner).minibatches(targets)] == [1, 1, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_minibatch_that_is_not_finite_changes_nothing_and_is_counted(value: float) -> None:
    learner = poisoned(set(range(1, 7)), value)
    before = weights_of(learner)
    metrics = learner.step(bandit_batch(learner, 0))
    assert torch.equal(weights_of(learner), before)
    assert (learner.updates, learner.skipped) == (0, 6)
    assert metrics.values["skipped"] == 6.0


def test_training_goes_on_after_a_minibatch_that_is_not_finite() -> None:
    learner = poisoned({2})
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
    assert torch.equal(weights_of(learner), appo(learner)._optimiser.flat)


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
    assert states_equal(straight.state_dict(), other.state_dict())


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
    before = copy.deepcopy(state)
    learner.step(bandit_batch(learner, 1))
    assert states_equal(state, before)


def test_a_state_of_another_network_is_refused() -> None:
    small = new_learner(hidden=(4,))
    with pytest.raises(CheckpointError, match=r"training\.network"):
        small.load_state_dict(new_learner().state_dict())


def test_a_state_of_another_algorithm_is_refused_by_name() -> None:
    other = Learner(APPO(setup_of(), CONFIG), name="mine:PPO")
    with pytest.raises(CheckpointError, match=r"cloud_learner\.algorithms\.appo:APPO.*mine:PPO"):
        other.load_state_dict(new_learner().state_dict())


def test_what_a_state_says_of_updates_is_never_lost() -> None:
    learner = new_learner()
    learner.resume_at(100)
    learner.step(bandit_batch(learner, 0))
    again = new_learner()
    again.load_state_dict(learner.state_dict())
    assert again.updates == learner.updates == 106


def test_weights_that_are_not_finite_are_counted_whoever_made_them() -> None:
    learner = new_learner()
    learner.step(bandit_batch(learner, 0))
    assert learner.non_finite == 0
    with torch.no_grad():
        next(iter(learner.policy.parameters())).view(-1)[0] = float("nan")
    assert learner.step(bandit_batch(learner, 1)).values["weights_finite"] == 0.0
    assert learner.non_finite == 1


def test_a_class_with_only_what_is_needed_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Minimal:
        def __init__(self) -> None:
            self.policy = APPO(setup_of(), CONFIG).policy
            self.updates = 0

        def learn(self, batch: Batch) -> dict[str, float]:
            self.updates += 1
            return {"loss": 0.5}

        def state_dict(self) -> dict[str, Any]:
            return {"updates": self.updates}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.updates = state["updates"]

    learner = Learner(cast("Algorithm", Minimal()), name="mine:Minimal")
    assert learner.step(bandit_batch(new_learner(), 0)).values["loss"] == 0.5
    assert (learner.updates, learner.skipped, learner.behaviour) == (1, 0, Behaviour())
    seen: list[int] = []
    monkeypatch.setattr(
        learner.algorithm.policy, "observe", lambda observations: seen.append(len(observations))
    )
    learner.observe(cast("Any", SimpleNamespace(observations=np.zeros((3, 2, 4), np.float32))))
    assert seen == [3]


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
