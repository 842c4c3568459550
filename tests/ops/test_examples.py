"""The examples do what they say, as a user's own would."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from strategies import cartpole_spec, make_chunk

from cloud_learner.algorithms.interface import Setup, load_algorithm
from cloud_learner.config import NetworkConfig
from cloud_learner.models.policy import build_policy
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.sample import probe_sample
from cloud_learner.training.experience import Admitted, collate
from edge_agent.config import EnvConfig
from edge_agent.environments.env import make_env
from examples.cartpole_pixels import FRAMES, SIZE, CartPolePixels, draw
from examples.cartpole_positions import CartPolePositions
from examples.reinforce import Reinforce
from examples.thermostat import Thermostat
from shoal.envelope import ChunkKey

SPEC = cartpole_spec()


@pytest.mark.parametrize(
    ("env_id", "threshold"),
    [
        ("examples.cartpole_positions:CartPolePositions", 450.0),
        ("examples.cartpole_pixels:CartPolePixels", 475.0),
        ("examples.thermostat:Thermostat", None),
    ],
)
def test_a_device_finds_the_environment_by_its_path_and_steps_it(
    env_id: str, threshold: float | None
) -> None:
    with make_env(EnvConfig(env_id, num_envs=2, seed=1)) as environments:
        assert environments.spec.reward_threshold == threshold
        first = environments.reset().copy()
        for _ in range(30):
            step = environments.step(np.zeros(2, np.int64))
        assert step.observations.shape == first.shape
        assert not np.array_equal(step.observations, first)


def test_positions_are_cartpoles_own_without_its_velocities() -> None:
    ours, theirs = CartPolePositions(), gymnasium.make("CartPole-v1")
    assert ours.reset(seed=3)[0].tolist() == theirs.reset(seed=3)[0][[0, 2]].tolist()
    for _ in range(9):
        seen, *rest = ours.step(np.int64(1))
        whole, *others = theirs.step(1)
        np.testing.assert_array_equal(seen, whole[[0, 2]])
        assert rest == others
        assert ours.observation_space.contains(seen)


def test_pictures_show_cartpole_step_by_step_with_its_rewards_and_ends() -> None:
    ours, theirs = CartPolePixels(), gymnasium.make("CartPole-v1")
    seen, _ = ours.reset(seed=5)
    state, _ = theirs.reset(seed=5)
    frame = draw(state[0], state[2])
    np.testing.assert_array_equal(seen, np.repeat(frame[..., None], FRAMES, axis=2))
    terminated = False
    while not terminated:
        before = seen
        seen, reward, terminated, truncated, _ = ours.step(np.int64(1))
        state, *others = theirs.step(1)
        assert [reward, terminated, truncated] == others[:3]
        np.testing.assert_array_equal(seen[..., :-1], before[..., 1:])
        np.testing.assert_array_equal(seen[..., -1], draw(state[0], state[2]))
        assert ours.observation_space.contains(seen)


def test_pictures_end_after_500_steps_like_cartpole() -> None:
    environment = CartPolePixels()
    environment.reset(seed=0)
    environment._steps = 499
    assert environment.step(np.int64(0))[3] is True


@pytest.mark.parametrize("position", [-2.4, -1.0, 0.0, 2.4])
@pytest.mark.parametrize("angle", [-0.21, 0.0, 0.21])
def test_a_move_of_a_tenth_of_a_pixel_shows(position: float, angle: float) -> None:
    frame = draw(position, angle)
    assert frame.shape == (SIZE, SIZE)
    assert frame.max() == 255
    moved = draw(position + 0.1 / 15, angle)
    turned = draw(position, angle + 0.002)
    assert (frame != moved).any()
    assert (frame != turned).any()


def test_the_thermostat_rewards_a_room_at_21_degrees() -> None:
    environment = Thermostat()
    observation, _ = environment.reset(seed=0)
    total, truncated = 0.0, False
    while not truncated:
        observation, reward, terminated, truncated, _ = environment.step(
            np.int64(2 if observation[0] < 0 else 0)
        )
        total += reward
        assert environment.observation_space.contains(observation)
        assert not terminated
    assert total > -200


def setup() -> Setup:
    return Setup(SPEC, NetworkConfig(hidden=(16,)), seed=0)


def test_reinforce_makes_actions_likelier_that_are_followed_by_more() -> None:
    algorithm = load_algorithm("examples.reinforce:Reinforce", {"gamma": 0.0}).build(setup())
    rng = np.random.default_rng(0)
    plain = make_chunk(SPEC, steps=32, envs=8)
    chunk = replace(
        plain,
        observations=rng.normal(size=plain.observations.shape).astype(np.float32),
        final_observations=rng.normal(size=plain.final_observations.shape).astype(np.float32),
        rewards=plain.actions.astype(np.float32),
    )
    batch = collate([Admitted(ChunkKey("pi-1", bytes(16), 0), 1, chunk, 0)], updates_now=0)
    observations = torch.from_numpy(batch.observations)
    before = algorithm.policy(observations).softmax(-1)[..., 1].mean()
    for _ in range(20):
        metrics = algorithm.learn(batch)
    assert algorithm.updates == 20
    assert algorithm.policy(observations).softmax(-1)[..., 1].mean() > before + 0.2
    assert set(metrics) == {"policy_loss"}
    resumed = Reinforce(setup(), Reinforce.Settings(gamma=0.0))
    resumed.load_state_dict(algorithm.state_dict())
    assert resumed.learn(batch) == algorithm.learn(batch)
    assert resumed.updates == algorithm.updates


@pytest.mark.parametrize(
    ("terminated", "truncated", "worth"),
    [(True, False, 1.0), (False, True, 2.0), (False, False, 2.0)],
)
def test_reinforce_values_what_would_have_followed_a_cut_and_nothing_after_a_termination(
    terminated: bool,  # noqa: FBT001 - parameters
    truncated: bool,  # noqa: FBT001
    worth: float,
) -> None:
    # A reward of 1 a step, half as much for each step later: 2 for ever, 1 where that is all.
    algorithm = Reinforce(setup(), Reinforce.Settings(gamma=0.5, learning_rate=2e-2))
    chunk = make_chunk(SPEC, steps=1, envs=64)
    taken = [Admitted(ChunkKey("pi-1", bytes(16), 0), 1, chunk, 0)]
    ends = 64 if terminated or truncated else 0
    batch = replace(
        collate(taken, updates_now=0),
        observations=np.full((2, 64, 4), 0.1, np.float32),
        rewards=np.random.default_rng(0).normal(1.0, 0.1, (1, 64)).astype(np.float32),
        terminated=np.full((1, 64), terminated),
        truncated=np.full((1, 64), truncated),
        final_index=np.arange(ends, dtype=np.int32),
        final_observations=np.full((ends, 4), 0.1, np.float32),
    )
    for _ in range(300):
        algorithm.learn(batch)
    with torch.no_grad():
        value = algorithm._model.value(torch.from_numpy(batch.observations)).mean().item()
    assert value == pytest.approx(worth, abs=0.15)


def test_a_torso_of_ones_own_is_trained_and_quantized() -> None:
    network = NetworkConfig(kind="examples.torso:tapered", hidden=(32, 8))
    policy = build_policy(SPEC, network, head="sample", seed=0)
    widths = [tuple(weights.shape) for weights in policy.parameters() if weights.ndim == 2]
    assert widths == [(32, 4), (20, 32), (8, 20), (2, 8)]
    assert all(parameter.requires_grad for parameter in policy.parameters())
    quantized = Quantizer(policy).quantize(policy, probe_sample(policy, seed=0))
    assert quantized.precision == "int8"
