"""The ring of transitions, against plain loops over the chunks that went in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.training.experience import Admitted, Transitions
from cloud_learner.training.transition_ring import TransitionRing
from shoal.envelope import ChunkKey
from shoal.episodes import Episode
from shoal.tensors import Array
from shoal.trajectory import Chunk

SPEC = cartpole_spec()
GAMMA = 0.9


def random_chunk(seed: int, steps: int, envs: int, *, ends: float = 0.3) -> Chunk:
    """Every observation is unique, so that each can be told from where it came."""
    rng = np.random.default_rng(seed)
    chunk = make_chunk(SPEC, steps=steps, envs=envs, seed=seed)
    terminated = rng.random((steps, envs)) < ends / 2
    truncated = rng.random((steps, envs)) < ends / 2
    index = np.flatnonzero(terminated | truncated).astype(np.int32)
    return replace(
        chunk,
        observations=rng.normal(size=(steps + 1, envs, 4)).astype(np.float32),
        rewards=rng.normal(size=(steps, envs)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        final_index=index,
        final_observations=rng.normal(size=(index.size, 4)).astype(np.float32),
        episodes=tuple(Episode(int(i) % envs, int(i) // envs, 0.0, 1) for i in index),
    )


def admitted(chunk: Chunk, position: int = 1, updates: int = 0) -> Admitted:
    return Admitted(ChunkKey("pi-1", RUN_ID, position), position, chunk, updates)


@dataclass(frozen=True)
class Expected:
    reward: float
    following: Array
    discount: float
    action: int


def by_plain_loop(chunk: Chunk, t: int, n: int, n_step: int) -> Expected:
    """What a transition is, said one step at a time."""
    reward, at = 0.0, t
    for step in range(n_step):
        at = t + step
        reward += GAMMA**step * float(chunk.rewards[at, n])
        if chunk.terminated[at, n] or chunk.truncated[at, n] or at == chunk.steps - 1:
            break
    following = chunk.observations[at + 1, n]
    if chunk.terminated[at, n] or chunk.truncated[at, n]:
        (place,) = np.flatnonzero(chunk.final_index == at * chunk.envs + n)
        following = chunk.final_observations[place]
    discount = 0.0 if chunk.terminated[at, n] else GAMMA ** (at - t + 1)
    return Expected(reward, following, discount, int(chunk.actions[t, n]))


def draw(ring: TransitionRing, rows: int = 512, n_step: int = 1) -> Transitions:
    return ring.draw(rows, n_step=n_step, gamma=GAMMA, beta=1.0, updates_now=100)


@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 3)), min_size=1, max_size=5),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.6]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(12, 90),
)
@settings(max_examples=60, deadline=None)
def test_every_transition_is_what_a_plain_loop_says(
    shapes: list[tuple[int, int]], n_step: int, alpha: float, ends: float, capacity: int
) -> None:
    ring = TransitionRing(capacity, seed=3, alpha=alpha)
    known: dict[bytes, Expected] = {}
    for seed, (steps, envs) in enumerate(shapes):
        chunk = random_chunk(seed, steps, envs, ends=ends)
        ring.insert(admitted(chunk, position=seed + 1, updates=seed))
        for t in range(steps):
            for n in range(envs):
                known[chunk.observations[t, n].tobytes()] = by_plain_loop(chunk, t, n, n_step)
    drawn = draw(ring, 64, n_step)
    for row in range(64):
        expected = known[drawn.observations[row].tobytes()]
        assert drawn.rewards[row] == pytest.approx(expected.reward, abs=1e-5)
        assert drawn.discounts[row] == pytest.approx(expected.discount, abs=1e-6)
        assert drawn.actions[row] == expected.action
        np.testing.assert_array_equal(drawn.next_observations[row], expected.following)


def test_the_next_observation_of_an_ended_episode_is_its_own_last_and_not_the_next_reset() -> None:
    chunk = random_chunk(0, 6, 2, ends=0.8)
    ring = TransitionRing(200, seed=0)
    ring.insert(admitted(chunk))
    drawn = draw(ring)
    resets = {
        chunk.observations[i // 2 + 1, i % 2].tobytes() for i in chunk.final_index.tolist()
    } - {observation.tobytes() for observation in chunk.final_observations}
    assert not resets & {following.tobytes() for following in drawn.next_observations}
    finals = {observation.tobytes() for observation in chunk.final_observations}
    assert finals <= {following.tobytes() for following in drawn.next_observations}


def test_termination_is_worth_nothing_and_truncation_its_final_observation() -> None:
    chunk = make_chunk(SPEC, steps=4, envs=2)
    ring = TransitionRing(100, seed=0)
    ring.insert(admitted(chunk))
    drawn = draw(ring)
    for row, discount in enumerate(drawn.discounts):
        following = drawn.next_observations[row]
        if np.array_equal(following, chunk.final_observations[0]):  # terminated
            assert discount == 0.0
        else:
            assert discount == pytest.approx(GAMMA)


def test_n_step_returns_never_cross_an_end_of_either_kind() -> None:
    chunk = make_chunk(SPEC, steps=4, envs=2)  # rewards are all 1; ends after 3 steps, and after 4
    ring = TransitionRing(100, seed=0)
    ring.insert(admitted(chunk))
    assert draw(ring, n_step=10).rewards.max() == pytest.approx(1 + GAMMA + GAMMA**2 + GAMMA**3)
    starts = {c.tobytes(): i for i, c in enumerate(chunk.observations[:, 0])}
    drawn = draw(ring, n_step=10)
    for row, observation in enumerate(drawn.observations):
        step = starts.get(observation.tobytes())
        if step is not None and step <= 2:
            assert drawn.rewards[row] == pytest.approx(sum(GAMMA**i for i in range(3 - step)))


def test_observations_keep_the_dtype_of_the_environment_and_are_held_once() -> None:
    chunk = random_chunk(0, 8, 1, ends=0.0)
    images = replace(
        chunk,
        observations=np.arange(9 * 4, dtype=np.uint8).reshape(9, 1, 4),
        final_observations=np.empty((0, 4), np.uint8),
    )
    ring = TransitionRing(50, seed=0)
    ring.insert(admitted(images))
    assert draw(ring).observations.dtype == np.uint8
    assert ring._written == 9  # 8 transitions and one border, not 16 observations


def test_the_oldest_are_forgotten_first() -> None:
    ring = TransitionRing(60, seed=0)
    for position in range(1, 12):
        ring.insert(admitted(random_chunk(position, 5, 2), position, updates=position))
    drawn = draw(ring)
    oldest = 100 - int(drawn.lags.max())
    assert oldest > 4
    assert set((100 - drawn.lags).tolist()) == set(range(oldest, 12))


def test_a_chunk_larger_than_the_ring_leaves_its_newest_part() -> None:
    ring = TransitionRing(7, seed=0)
    chunk = random_chunk(0, 20, 1, ends=0.0)
    ring.insert(admitted(chunk))
    newest = {observation.tobytes() for observation in chunk.observations[14:20, 0]}
    assert {observation.tobytes() for observation in draw(ring).observations} == newest


def test_importance_weights_are_applied_by_default_and_undo_the_priorities() -> None:
    chunk = replace(
        random_chunk(0, 16, 1, ends=0.0),
        priorities=np.linspace(0.1, 4.0, 16, dtype=np.float32)[:, None],
    )
    ring = TransitionRing(100, seed=0, alpha=1.0)
    ring.insert(admitted(chunk))
    drawn = draw(ring, 20_000)
    counts, weighed = np.zeros(16), np.zeros(16)
    places = {observation.tobytes(): t for t, observation in enumerate(chunk.observations[:, 0])}
    for row, observation in enumerate(drawn.observations):
        counts[places[observation.tobytes()]] += 1
        weighed[places[observation.tobytes()]] += drawn.weights[row]
    assert chunk.priorities is not None
    np.testing.assert_allclose(
        counts / counts.sum(), chunk.priorities[:, 0] / chunk.priorities.sum(), atol=0.01
    )
    np.testing.assert_allclose(weighed / weighed.mean(), 1.0, atol=0.1)  # uniform again
    assert drawn.weights.max() == 1.0


def test_first_priorities_are_what_the_device_saw_or_the_largest_so_far() -> None:
    told = replace(random_chunk(0, 4, 1, ends=0.0), priorities=np.full((4, 1), 9.0, np.float32))
    ring = TransitionRing(100, seed=0, alpha=0.5)
    ring.insert(admitted(told, 1, updates=1))
    ring.insert(admitted(random_chunk(1, 4, 1, ends=0.0), 2, updates=2))
    priorities = ring.state_dict()["priorities"]
    np.testing.assert_allclose(priorities, [3, 3, 3, 3, 0, 3, 3, 3, 3, 0], rtol=1e-5)


def test_priorities_of_slots_that_were_written_anew_are_left_alone() -> None:
    ring = TransitionRing(10, seed=0, alpha=1.0)
    ring.insert(admitted(random_chunk(0, 4, 1, ends=0.0), 1))
    stale = draw(ring, 8)
    ring.insert(admitted(random_chunk(1, 8, 1, ends=0.0), 2))
    ring.prioritize(stale, np.full(8, 50.0))
    survivors = ring._stamps[stale.slots] == stale.stamps
    assert not survivors.all()
    newest = ring.state_dict()["priorities"][-9:-1]
    np.testing.assert_allclose(newest, 1.0)


def test_an_error_that_is_not_finite_changes_no_priority() -> None:
    ring = TransitionRing(20, seed=0, alpha=1.0)
    ring.insert(admitted(random_chunk(0, 4, 1, ends=0.0)))
    before = ring.state_dict()["priorities"]
    ring.prioritize(draw(ring, 8), np.full(8, np.nan))
    np.testing.assert_array_equal(ring.state_dict()["priorities"], before)


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_a_ring_that_was_filled_again_goes_on_bit_for_bit(alpha: float) -> None:
    chunks = {n: random_chunk(n, 1 + n % 6, 2) for n in range(1, 20)}
    ring = TransitionRing(70, seed=5, alpha=alpha)
    for position in range(1, 14):
        ring.insert(admitted(chunks[position], position, updates=position))
        drawn = draw(ring, 16)
        ring.prioritize(drawn, np.abs(drawn.rewards))
    again = TransitionRing(70, seed=5, alpha=alpha)
    state = ring.state_dict()
    again.load_state_dict(state, {int(p): chunks[int(p)] for p in state["held"][:, 0]})
    assert again.size == ring.size
    for position in range(14, 20):
        for each in (ring, again):
            each.insert(admitted(chunks[position], position, updates=position))
        ours, theirs = draw(ring, 64, 3), draw(again, 64, 3)
        for name in Transitions.__slots__:
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        ring.prioritize(ours, np.abs(ours.rewards))
        again.prioritize(theirs, np.abs(theirs.rewards))


def test_chunks_that_the_journal_no_longer_has_leave_their_slots_empty() -> None:
    ring = TransitionRing(100, seed=0, alpha=0.5)
    for position in (1, 2):
        ring.insert(admitted(random_chunk(position, 4, 1, ends=0.0), position, updates=position))
    again = TransitionRing(100, seed=0, alpha=0.5)
    again.load_state_dict(ring.state_dict(), {2: random_chunk(2, 4, 1, ends=0.0)})
    assert again.size == 4
    assert set(draw(again).lags.tolist()) == {98}
