"""TD errors as the device sees them, against a loop that says what they are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from edge.conftest import Counting, counting
from hypothesis import given
from hypothesis import strategies as st
from policy_publisher import Publisher
from strategies import cartpole_spec, make_chunk

from edge_agent.acting.actor import Actor
from edge_agent.acting.priorities import td_errors
from shoal.errors import PolicyRejected
from shoal.trajectory import decode_chunk, encode_chunk
from shoal.validation import validate_chunk

RUN = bytes(range(16))


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_is_the_distance_to_the_one_step_target(seed: int, gamma: float) -> None:
    chunk = make_chunk(cartpole_spec(), steps=6, envs=3, seed=seed)
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(7, 3, 2)).astype(np.float32)
    errors = td_errors(q, chunk, gamma)
    assert errors.dtype == np.float32
    for t in range(6):
        for n in range(3):
            follows = q[t + 1, n].max()
            if chunk.truncated[t, n]:
                follows = q[t, n].max()  # and never the next episode's
            if chunk.terminated[t, n]:
                follows = 0.0
            want = abs(chunk.rewards[t, n] + gamma * follows - q[t, n, chunk.actions[t, n]])
            assert errors[t, n] == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_terminated_wins_over_truncated() -> None:
    chunk = make_chunk(cartpole_spec())
    both = dataclasses.replace(chunk, terminated=chunk.terminated | chunk.truncated)
    q = np.full((5, 2, 2), 3, np.float32)
    errors = td_errors(q, both, 0.5)
    assert np.array_equal(errors, np.where(both.terminated, 2.0, 0.5))


def test_huge_values_give_finite_errors() -> None:
    q = np.full((5, 2, 2), 3e38, np.float32)
    q[::2] *= -1
    errors = td_errors(q, make_chunk(cartpole_spec()), 1.0)
    assert np.isfinite(errors).all()


def test_an_actor_reports_them_if_the_manifest_asks() -> None:
    with counting(Counting(3), Counting(4, truncates=True)) as environments:
        policy = Publisher(changes={"priority_gamma": 0.75}).policy()
        actor = Actor(environments, run_id=RUN, chunk_steps=10)
        for _ in range(2):
            chunk = decode_chunk(encode_chunk(actor.rollout(policy)))
            validate_chunk(chunk, environments.spec)
            noise = np.zeros((2, 2), np.float32)
            q = np.stack(
                [
                    policy.session.runtime.run(
                        ["distribution"], {"observation": row, "noise": noise}
                    )[0]
                    for row in chunk.observations
                ]
            )
            assert chunk.priorities is not None
            assert np.array_equal(chunk.priorities, td_errors(q, chunk, 0.75))
        assert actor.counters.vector_steps == 20, "the run for the last observation is no step"
        plain = actor.rollout(Publisher().policy(version=2))
        assert plain.priorities is None


def test_q_values_that_are_not_finite_condemn_the_policy() -> None:
    with counting(Counting(3)) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=5)
        publisher = Publisher(changes={"priority_gamma": 0.75})
        with pytest.raises(PolicyRejected):
            actor.rollout(publisher.policy(gain=np.float32(np.inf)))
