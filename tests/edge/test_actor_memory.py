"""What a policy remembers: carried from step to step, forgotten where an episode ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from edge.conftest import Counting, counting
from edge.worlds import World
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from policy_publisher import Publisher

from edge_agent.acting.actor import Actor
from edge_agent.environments.env import Environments
from shoal.errors import PolicyRejected
from shoal.noise import noise_block
from shoal.trajectory import Chunk, decode_chunk, encode_chunk
from shoal.validation import validate_chunk

RUN = bytes(range(16))
Make = Callable[..., Environments]


def after(steps: int) -> float:
    """The state of the test policy after so many steps of an episode: half of it, plus one."""
    state = np.float32(0)
    for _ in range(steps):
        state = state * np.float32(0.5) + np.float32(1)
    return float(state)


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    steps=st.integers(1, 5),
    truncates=st.booleans(),
)
def test_the_state_a_chunk_begins_with_is_that_of_its_place_in_the_episode(
    lengths: list[int], steps: int, *, truncates: bool
) -> None:
    copies = [Counting(length, truncates=truncates) for length in lengths]
    policy = Publisher(memory=2).policy()
    with counting(*copies) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=steps)
        for k in range(5):
            chunk = decode_chunk(encode_chunk(actor.rollout(policy)))
            validate_chunk(chunk, environments.spec)
            assert chunk.initial_state is not None
            want = [[after(k * steps % length)] * 2 for length in lengths]
            assert chunk.initial_state.tolist() == want


def replayed(chunk: Chunk, policy_of: Publisher, seed: int = 0) -> None:
    """Makes every decision of a chunk again from its initial state, as a learner does."""
    policy = policy_of.policy(seed=seed)
    noise = noise_block(RUN, chunk.first_step, chunk.steps, chunk.envs, policy_of.spec.action)
    state = chunk.initial_state
    assert state is not None
    for t in range(chunk.steps):
        decided = policy.act(chunk.observations[t], noise[t], state)
        assert decided.next_states is not None
        assert np.array_equal(decided.actions, chunk.actions[t])
        assert np.array_equal(decided.log_probs, chunk.log_probs[t])
        ended = chunk.terminated[t] | chunk.truncated[t]
        state = np.where(ended[:, None], np.float32(0), decided.next_states)


def test_a_learner_can_make_every_decision_again_from_the_initial_state() -> None:
    publisher = Publisher(memory=3)
    with counting(Counting(4), Counting(7)) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=9)
        for _ in range(3):
            replayed(actor.rollout(publisher.policy()), publisher)


def test_a_state_matters_to_what_the_policy_does() -> None:
    publisher = Publisher(memory=3)
    policy = publisher.policy()
    observations, noise = np.zeros((1, 4), np.float32), np.zeros((1, 2), np.float32)
    decided = [policy.act(observations, noise, np.full((1, 3), s, np.float32)) for s in (0, 2)]
    assert decided[0].log_probs != decided[1].log_probs


def test_the_state_is_carried_over_to_the_next_version_if_it_is_as_wide() -> None:
    with counting(Counting(100)) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=3)
        actor.rollout(Publisher(memory=2).policy(version=1, seed=1))
        second = actor.rollout(Publisher(memory=2).policy(version=2, seed=2))
        assert second.initial_state is not None
        assert second.initial_state.tolist() == [[after(3)] * 2]
        wider = actor.rollout(Publisher(memory=4).policy(version=3))
        assert wider.initial_state is not None
        assert wider.initial_state.tolist() == [[0.0] * 4]
        without = actor.rollout(Publisher().policy(version=4))
        assert without.initial_state is None
        again = actor.rollout(Publisher(memory=4).policy(version=5))
        assert again.initial_state is not None
        assert again.initial_state.tolist() == [[0.0] * 4]


def test_nothing_is_remembered_of_what_was_before_safe_steps() -> None:
    with counting(Counting(100)) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=3)
        policy = Publisher(memory=2).policy()
        actor.rollout(policy)
        actor.safe_steps(2)
        chunk = actor.rollout(policy)
        assert chunk.initial_state is not None
        assert not chunk.initial_state.any()


def test_a_state_that_is_not_finite_reaches_neither_the_environment_nor_the_next_policy() -> None:
    copy = Counting(100)
    with counting(copy) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=3)
        publisher = Publisher(memory=2)
        actor.rollout(publisher.policy(version=1))
        with pytest.raises(PolicyRejected, match="policy 2 gave NaN or infinity"):
            actor.rollout(publisher.policy(version=2, a_whole=np.float32(np.inf)))
        assert copy.steps == 3
        chunk = actor.rollout(publisher.policy(version=3))
        assert chunk.initial_state is not None
        assert chunk.initial_state.tolist() == [[after(3)] * 2]


def test_memory_works_beside_leaves_of_a_dict() -> None:
    seen = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})
    with Environments("world", [World(seen, spaces.Discrete(4))] * 1, seed=0) as environments:
        publisher = Publisher(spec=environments.spec, memory=2)
        actor = Actor(environments, run_id=RUN, chunk_steps=8)
        for _ in range(2):
            replayed(actor.rollout(publisher.policy()), publisher)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_noise_is_correlated_as_the_manifest_says(correlation: float) -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    with counting(Counting(5, action_space=space)) as environments:
        publisher = Publisher(spec=environments.spec, changes={"noise_correlation": correlation})
        policy = publisher.policy()
        actor = Actor(environments, run_id=RUN, chunk_steps=20)
        for _ in range(3):
            chunk = actor.rollout(policy)
            noise = noise_block(RUN, chunk.first_step, 20, 1, environments.spec.action, correlation)
            for t in range(20):
                decided = policy.act(chunk.observations[t], noise[t])
                assert decided.actions.tobytes() == chunk.actions[t].tobytes()
