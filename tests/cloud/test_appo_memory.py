"""APPO with a policy that remembers, against one that goes on step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from strategies import RUN_ID

from cloud_learner.algorithms.appo import APPO
from cloud_learner.algorithms.interface import Setup
from cloud_learner.config import NetworkConfig
from cloud_learner.training.experience import Admitted, Batch, collate
from shoal.envelope import ChunkKey
from shoal.episodes import Episode
from shoal.spaces import Discrete, EnvSpec, unbounded
from shoal.trajectory import Chunk

SPEC = EnvSpec("Test-v0", unbounded((1,)), Discrete(2))
STEPS, LANES = 6, 3
KINDS = ["lstm", "attention"]
PLAIN = APPO.Settings(normalize_advantages=False, entropy_coef=0.0, value_loss="mse", gamma=0.9)


def new_appo(kind: str, settings: object = PLAIN, seed: int = 0) -> APPO:
    network = NetworkConfig(kind=kind, hidden=(8,), memory=4, window=4)
    algorithm = APPO(Setup(SPEC, network, seed), settings)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # actions that depend on what is remembered
        for parameter in algorithm.model.parameters():
            if parameter.ndim > 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return algorithm


def make_batch(algorithm: APPO, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((2, STEPS, LANES), np.bool_)
    terminated[1, 0] = truncated[3, 2] = truncated[STEPS - 1, 1] = True
    ends = np.flatnonzero(terminated | truncated).astype(np.int32)
    chunk = Chunk(
        spec_fingerprint=SPEC.fingerprint,
        policy_version=1,
        policy_digest=bytes(32),
        first_step=0,
        observations=rng.normal(size=(STEPS + 1, LANES, 1)).astype(np.float32),
        actions=rng.integers(0, 2, (STEPS, LANES)),
        log_probs=np.full((STEPS, LANES), np.log(0.5), np.float32),
        rewards=rng.normal(size=(STEPS, LANES)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        final_index=ends,
        final_observations=rng.normal(size=(ends.size, 1)).astype(np.float32),
        episodes=tuple(Episode(int(e) % LANES, int(e) // LANES, 0.0, 1) for e in ends),
        initial_state=_reachable_state(algorithm, rng),
    )
    return collate([Admitted(ChunkKey("pi-1", RUN_ID, 0), 1, chunk, 0)], updates_now=0)


def _reachable_state(algorithm: APPO, rng: np.random.Generator) -> NDArray[np.float32]:
    before = torch.from_numpy(rng.normal(size=(3, LANES, 1)).astype(np.float32))
    zeros = torch.zeros(LANES, algorithm.policy.state_width)
    with torch.no_grad():
        unrolled = algorithm.policy.unroll(before, zeros, torch.zeros(3, LANES, dtype=torch.bool))
    state: NDArray[np.float32] = unrolled.state.numpy()
    return state


def one_step(
    algorithm: APPO, observation: NDArray[np.float32], state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As a device goes on: parameters, value and next state of one environment."""
    row = torch.from_numpy(observation).view(1, 1, 1)
    with torch.no_grad():
        unrolled = algorithm.policy.unroll(row, state, torch.zeros(1, 1, dtype=torch.bool))
        value = algorithm.model.value(row, unrolled.memory)
    return unrolled.params[0, 0], value[0, 0], unrolled.state


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_batch_is_what_a_device_sees_step_by_step(kind: str) -> None:
    algorithm = new_appo(kind)
    batch = make_batch(algorithm)
    with torch.no_grad():
        seen = algorithm._view.look(batch)
    finals = dict(zip(batch.final_index.tolist(), batch.final_observations, strict=True))
    for lane in range(LANES):
        state = torch.from_numpy(batch.initial_state[lane : lane + 1])
        for t in range(STEPS):
            params, value, after = one_step(algorithm, batch.observations[t, lane], state)
            torch.testing.assert_close(seen.params[t, lane], params, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(seen.values[t, lane], value, atol=1e-5, rtol=1e-4)
            end = finals.get(t * LANES + lane)
            # The final observation is seen with the memory of its own episode.
            following = batch.observations[t + 1, lane] if end is None else end
            _, wanted, _ = one_step(algorithm, following, after)
            torch.testing.assert_close(seen.next_values[t, lane], wanted, atol=1e-5, rtol=1e-4)
            state = after if end is None else torch.zeros_like(after)


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_episode_is_never_worth_the_next_ones_reset(kind: str) -> None:
    algorithm = new_appo(kind)
    view, batch = algorithm._view, make_batch(algorithm)
    resets, finals = batch.observations.copy(), batch.final_observations.copy()
    resets[3 + 1, 2] += 5.0
    finals += 5.0
    with torch.no_grad():
        plain = view.look(batch).next_values
        other_reset = view.look(replace(batch, observations=resets)).next_values
        other_final = view.look(replace(batch, final_observations=finals)).next_values
    assert other_reset[3, 2] == plain[3, 2]
    assert other_final[3, 2] != plain[3, 2]
    assert other_final[STEPS - 1, 1] != plain[STEPS - 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_minibatches_of_lanes_see_what_the_whole_batch_saw(kind: str) -> None:
    algorithm = new_appo(kind, replace(PLAIN, minibatches=2))
    batch = make_batch(algorithm)
    targets = algorithm.prepare(batch)
    assert targets.rows == LANES
    with torch.no_grad():
        seen = algorithm._view.look(batch)
        again = algorithm._view.params_again(targets.columns)
    torch.testing.assert_close(again.transpose(0, 1), seen.params, atol=1e-5, rtol=1e-4)
    parts = list(algorithm.minibatches(targets))
    assert sum(len(columns["state"]) for columns in parts) == LANES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("burn_in", [2, 99])
def test_the_burn_in_warms_up_memory_and_is_no_part_of_the_loss(kind: str, burn_in: int) -> None:
    algorithm = new_appo(kind, replace(PLAIN, burn_in=burn_in, minibatches=1))
    batch = make_batch(algorithm)
    kept = max(1, STEPS - burn_in)
    columns = algorithm.prepare(batch).columns
    assert columns["costs"].shape == (LANES, kept)
    with torch.no_grad():
        seen = algorithm._view.look(batch)
        again = algorithm._view.params_again(columns)
    torch.testing.assert_close(again.transpose(0, 1), seen.params[-kept:], atol=1e-5, rtol=1e-4)
    changed = replace(batch, rewards=batch.rewards.copy())
    changed.rewards[: STEPS - kept] += 100.0
    for name, column in algorithm.prepare(changed).columns.items():
        torch.testing.assert_close(column, columns[name], msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_learns_what_only_memory_can_tell(kind: str) -> None:
    """Right is the action that the sign seen three steps before asks for."""
    settings = APPO.Settings(
        learning_rate=1e-2, epochs=4, minibatches=2, gamma=0.0, entropy_coef=0.0, max_grad_norm=1.0
    )
    algorithm = APPO(
        Setup(SPEC, NetworkConfig(kind=kind, hidden=(16,), memory=16, window=4), 0), settings
    )
    rate = 0.0
    for seed in range(120):
        batch = _recall_batch(algorithm, seed)
        rate = float(batch.rewards[2::3].mean())
        if rate > 0.95:
            break
        algorithm.learn(batch)
    assert rate > 0.95


def _recall_batch(algorithm: APPO, seed: int, steps: int = 12, lanes: int = 32) -> Batch:
    rng = np.random.default_rng(seed)
    signs = np.zeros((steps + 1, lanes, 1), np.float32)
    signs[::3, :, 0] = rng.choice([-1.0, 1.0], (len(signs[::3]), lanes))
    state = torch.zeros(lanes, algorithm.policy.state_width)
    with torch.no_grad():
        params = algorithm.policy.unroll(
            torch.from_numpy(signs[:-1]), state, torch.zeros(steps, lanes, dtype=torch.bool)
        ).params
        gumbel = torch.from_numpy(rng.gumbel(size=(steps, lanes, 2)).astype(np.float32))
        actions = (params + gumbel).argmax(-1)
        log_probs = algorithm.policy.distribution.log_prob(params, actions).numpy()
    asked = np.repeat(signs[:-1:3, :, 0] > 0, 3, axis=0)
    rewards = np.zeros((steps, lanes), np.float32)
    rewards[2::3] = (actions.numpy() == asked)[2::3]
    none = np.zeros((steps, lanes), np.bool_)
    return Batch(
        observations=signs,
        actions=actions.numpy(),
        log_probs=log_probs,
        rewards=rewards,
        terminated=none,
        truncated=none,
        final_index=np.empty(0, np.int32),
        final_observations=np.empty((0, 1), np.float32),
        initial_state=state.numpy(),
        starts=none,
        lags=np.zeros(lanes, np.int64),
        positions=(seed,),
    )
