from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.acting.actor import Actor, Control, RolloutStopped
from edge_agent.config import EnvConfig
from edge_agent.environments.env import Environments, make_env
from shoal.errors import ConfigError, PolicyRejected
from shoal.noise import noise_block
from shoal.trajectory import Chunk, decode_chunk, encode_chunk
from shoal.validation import validate_chunk

if TYPE_CHECKING:
    from edge.conftest import Counting
    from policy_publisher import Publisher

    Make = Callable[..., Environments]

RUN = bytes(range(16))


@dataclass
class SimulatedClock:
    """Time passes only where a test says so."""

    time: float = 100.0
    waits: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float, stop: threading.Event) -> None:
        self.waits.append(seconds)
        self.time += seconds


def columns(chunk: Chunk) -> dict[str, list[object]]:
    names = ("observations", "actions", "log_probs", "rewards", "terminated", "truncated")
    return {name: getattr(chunk, name).tolist() for name in names}


def test_a_chunk_is_what_a_learner_accepts(make_publisher: type[Publisher]) -> None:
    with make_env(EnvConfig("CartPole-v1", num_envs=3, seed=1)) as environments:
        policy = make_publisher(spec=environments.spec).policy(version=4)
        actor = Actor(environments, run_id=RUN, chunk_steps=70)
        for k in range(3):
            chunk = actor.rollout(policy)
            again = decode_chunk(encode_chunk(chunk))
            validate_chunk(again, environments.spec)
            assert columns(again) == columns(chunk)
            assert again.episodes == chunk.episodes
            assert len(chunk.episodes) > 0
            assert (chunk.policy_version, chunk.policy_digest) == (4, policy.digest)
            assert chunk.first_step == 70 * k
        assert actor.counters.env_steps == 630


def test_box_actions_are_recorded_raw_and_clipped_only_at_the_environment(
    make_publisher: type[Publisher], make_copy: type[Counting], make_environments: Make
) -> None:
    copy = make_copy(4, action_space=spaces.Box(-1, 1, (2,), np.float32))
    with make_environments(copy) as environments:
        policy = make_publisher(spec=environments.spec).policy()
        chunk = Actor(environments, run_id=RUN, chunk_steps=50).rollout(policy)
        validate_chunk(decode_chunk(encode_chunk(chunk)), environments.spec)
        assert np.abs(chunk.actions).max() > 1.5
        assert np.array_equal(np.clip(chunk.actions[:, 0], -1, 1), np.array(copy.taken))
        noise = noise_block(RUN, 0, 50, 1, environments.spec.action)
        for t in range(50):
            decided = policy.act(chunk.observations[t], noise[t])
            assert np.array_equal(decided.actions, chunk.actions[t])
            assert np.array_equal(decided.log_probs, chunk.log_probs[t])


def test_every_action_can_be_made_again_from_the_run_and_the_step(
    make_publisher: type[Publisher],
) -> None:
    with make_env(EnvConfig("CartPole-v1", num_envs=8, seed=2)) as environments:
        policy = make_publisher(spec=environments.spec).policy()
        actor = Actor(environments, run_id=RUN, chunk_steps=16)
        actor.safe_steps(5)
        for _ in range(2):
            chunk = actor.rollout(policy)
            noise = noise_block(RUN, chunk.first_step, 16, 8, environments.spec.action)
            for t in range(16):
                decided = policy.act(chunk.observations[t], noise[t])
                assert decided.actions.tobytes() == chunk.actions[t].tobytes()
                assert decided.log_probs.tobytes() == chunk.log_probs[t].tobytes()
        assert chunk.first_step == 21


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    steps=st.integers(1, 9),
    truncates=st.booleans(),
)
def test_chunks_join_without_a_step_invented_or_lost(
    lengths: list[int], steps: int, *, truncates: bool
) -> None:
    from edge.conftest import Counting, counting
    from policy_publisher import Publisher

    copies = [Counting(length, truncates=truncates, reward=0.1) for length in lengths]
    policy = Publisher().policy()
    with counting(*copies) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=steps)
        chunks = [actor.rollout(policy) for _ in range(4)]
    assert [copy.steps for copy in copies] == [4 * steps] * len(copies)
    for chunk, later in itertools.pairwise(chunks):
        assert np.array_equal(chunk.observations[-1], later.observations[0])
    for n, length in enumerate(lengths):
        flat = 0
        for chunk in chunks:
            decode_chunk(encode_chunk(chunk))  # which checks that the ends agree
            ends = dict(zip(chunk.final_index.tolist(), chunk.final_observations, strict=True))
            for t in range(steps):
                episode, at = divmod(flat, length)
                assert chunk.observations[t, n].tolist() == [episode, at, 10 * episode + at, 0]
                over = at + 1 == length
                assert chunk.terminated[t, n] == (over and not truncates)
                assert chunk.truncated[t, n] == (over and truncates)
                if over:
                    final = ends[t * len(lengths) + n].tolist()
                    assert final == [episode, length, 10 * episode + length, 0]
                    # What follows is the next episode's own first observation.
                    assert chunk.observations[t + 1, n].tolist()[:2] == [episode + 1, 0]
                flat += 1
        ended = [e for chunk in chunks for e in chunk.episodes if e.env == n]
        assert [(e.length, e.total_return) for e in ended] == [(length, sum([0.1] * length))] * (
            4 * steps // length
        )
    assert actor.counters.episodes == sum(len(chunk.episodes) for chunk in chunks)


def test_a_later_rollout_leaves_an_earlier_chunk_alone(
    publisher: Publisher, make_copy: type[Counting], make_environments: Make
) -> None:
    with make_environments(make_copy(3)) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=7)
        policy = publisher.policy()
        first = actor.rollout(policy)
        before = encode_chunk(first)
        actor.rollout(policy)
        assert encode_chunk(first) == before


def test_a_policy_is_swapped_between_chunks_and_the_actor_reads_the_new_one(
    publisher: Publisher, make_copy: type[Counting], make_environments: Make
) -> None:
    with make_environments(make_copy(3), make_copy(4)) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=40)
        noise = noise_block(RUN, 0, 120, 2, environments.spec.action)
        policies = [publisher.policy(version=v, seed=v) for v in (1, 2)]
        for k, policy in enumerate((policies[0], policies[1], policies[0])):
            chunk = actor.rollout(policy)
            assert (chunk.policy_version, chunk.policy_digest) == (policy.version, policy.digest)
            for t in range(40):
                decided = policy.act(chunk.observations[t], noise[40 * k + t])
                assert np.array_equal(decided.log_probs, chunk.log_probs[t])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_action_of_a_policy_that_gives_nan_reaches_the_environment(
    bad: float, publisher: Publisher, make_copy: type[Counting], make_environments: Make
) -> None:
    copy = make_copy(3)
    with make_environments(copy) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=4)
        good = publisher.policy(version=1)
        actor.rollout(good)
        with pytest.raises(PolicyRejected, match="policy 2 gave NaN or infinity") as caught:
            actor.rollout(publisher.policy(version=2, gain=np.float32(bad)))
        assert caught.value.reason == "non_finite"
        assert copy.steps == 4
        assert actor.counters.non_finite == 1
        chunk = actor.rollout(good)
        assert chunk.first_step == 4
        assert chunk.observations[0, 0].tolist() == [1, 1, 11, 0]


def test_a_rollout_given_up_never_uses_its_noise_twice(
    publisher: Publisher, make_copy: type[Counting], make_environments: Make
) -> None:
    stop = threading.Event()
    copy = make_copy(100)
    copy._on_step = lambda: stop.set() if copy.steps == 2 else None
    with make_environments(copy) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=10)
        with pytest.raises(RolloutStopped):
            actor.rollout(publisher.policy(), stop)
        assert copy.steps == 3
        chunk = actor.rollout(publisher.policy())
        assert chunk.first_step == 3
        assert chunk.observations[0, 0].tolist() == [0, 3, 3, 0]


def test_deadlines_are_absolute_so_that_delays_do_not_add_up(
    publisher: Publisher, make_copy: type[Counting], make_environments: Make
) -> None:
    clock = SimulatedClock()
    began: list[float] = []

    def work() -> None:
        began.append(clock.time)
        clock.time += 0.03

    with make_environments(make_copy(5, on_step=work)) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=50, control=Control(hz=20), clock=clock)
        actor.rollout(publisher.policy())
        actor.safe_steps(50)
    np.testing.assert_allclose(began, 100 + 0.05 * np.arange(100), rtol=0, atol=1e-9)
    assert actor.counters.deadline_misses == 0
    np.testing.assert_allclose(clock.waits, 0.02, atol=1e-9)


def test_missed_deadlines_are_counted_and_not_made_up_for_in_a_burst(
    publisher: Publisher, make_copy: type[Counting], make_environments: Make
) -> None:
    clock = SimulatedClock()
    began: list[float] = []

    def work() -> None:
        began.append(round(clock.time - 100, 6))
        clock.time += 0.35 if len(began) == 2 else 0.01

    with make_environments(make_copy(50, on_step=work)) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=5, control=Control(hz=10), clock=clock)
        actor.rollout(publisher.policy())
    # The step of 0.1 s ends at 0.45 s: the deadlines 0.2, 0.3 and 0.4 have passed.
    assert began == [0.0, 0.1, 0.45, 0.5, 0.6]
    assert actor.counters.deadline_misses == 3


def test_without_a_rate_the_clock_is_not_asked(
    publisher: Publisher, make_copy: type[Counting], make_environments: Make
) -> None:
    clock = SimulatedClock()
    with make_environments(make_copy()) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=5, clock=clock)
        actor.rollout(publisher.policy())
    assert clock.waits == []


def test_a_wait_for_a_deadline_ends_when_the_process_stops(
    publisher: Publisher, make_copy: type[Counting], make_environments: Make
) -> None:
    stop = threading.Event()
    copy = make_copy(100, on_step=stop.set)
    with make_environments(copy) as environments:
        actor = Actor(environments, run_id=RUN, chunk_steps=5, control=Control(hz=0.001))
        with pytest.raises(RolloutStopped):
            actor.rollout(publisher.policy(), stop)
    assert copy.steps == 1


def test_safe_steps_are_counted_and_not_recorded(
    publisher: Publisher, make_copy: type[Counting], make_environments: Make
) -> None:
    copies = [make_copy(4, action_space=spaces.Discrete(3, start=5)) for _ in range(2)]
    with make_environments(*copies) as environments:
        control = Control(safe_action=[6])
        actor = Actor(environments, run_id=RUN, chunk_steps=8, control=control)
        actor.safe_steps(6)
        assert copies[1].taken == [6] * 6
        assert (actor.counters.env_steps, actor.counters.episodes) == (12, 2)
        stopped = threading.Event()
        stopped.set()
        actor.safe_steps(6, stopped)
        assert actor.counters.vector_steps == 6


@pytest.mark.parametrize(
    ("space", "given_action", "taken"),
    [
        (spaces.Discrete(3, start=2), None, 2),
        (spaces.Discrete(3), [2.0], 2),
        (spaces.Box(-1, 1, (2,), np.float32), None, [0, 0]),
        (spaces.Box(1, 2, (2,), np.float32), None, [1, 1]),
        (spaces.Box(-1, 1, (2,), np.float32), [0.5, -1], [0.5, -1]),
        (spaces.Box(-1, 1, (2, 1), np.float64), [0.5, -1], [[0.5], [-1]]),
    ],
)
def test_the_safe_action_is_the_configured_one_or_zero_within_the_bounds(
    space: spaces.Space[object],
    given_action: list[float] | None,
    taken: object,
    make_copy: type[Counting],
    make_environments: Make,
) -> None:
    copy = make_copy(action_space=space)
    with make_environments(copy) as environments:
        control = Control(safe_action=given_action)
        Actor(environments, run_id=RUN, chunk_steps=1, control=control).safe_steps(1)
        assert np.array_equal(copy.taken[0], np.asarray(taken))


@pytest.mark.parametrize(
    ("space", "wrong", "said"),
    [
        (spaces.Discrete(3), [3], "from 0 to 2"),
        (spaces.Discrete(3), [-1], "from 0 to 2"),
        (spaces.Discrete(3), [0.5], "whole number"),
        (spaces.Discrete(3), [1, 1], "one whole number"),
        (spaces.Discrete(3), [], "one whole number"),
        (spaces.Box(-1, 1, (2,), np.float32), [0], "give 2"),
        (spaces.Box(-1, 1, (2,), np.float32), [0, 1.5], "between"),
        (spaces.Box(-1, 1, (2,), np.float32), [0, np.nan], "between"),
    ],
)
def test_a_wrong_safe_action_is_refused_with_what_is_allowed(
    space: spaces.Space[object],
    wrong: list[float],
    said: str,
    make_copy: type[Counting],
    make_environments: Make,
) -> None:
    with (
        make_environments(make_copy(action_space=space)) as environments,
        pytest.raises(ConfigError, match=f"actor.safe_action.*{said}"),
    ):
        Actor(environments, run_id=RUN, chunk_steps=1, control=Control(safe_action=wrong))


def test_images_stay_bytes(
    make_publisher: type[Publisher], make_copy: type[Counting], make_environments: Make
) -> None:
    copy = make_copy(3)
    copy.observation_space = spaces.Box(0, 255, (4,), np.uint8)
    copy._observation = np.zeros(4, np.uint8)
    with make_environments(copy) as environments:
        policy = make_publisher(spec=environments.spec).policy()
        chunk = Actor(environments, run_id=RUN, chunk_steps=7).rollout(policy)
        assert chunk.observations.dtype == np.uint8
        assert chunk.final_observations.dtype == np.uint8
        validate_chunk(chunk, environments.spec)
