"""Chunks of a run become episodes: all of each, and none across a gap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cloud_learner.journal.episodes import EpisodeJoiner, WholeEpisode
from shoal.episodes import Episode
from shoal.trajectory import Chunk

FINGERPRINT = bytes(32)


def run_of(lengths: list[list[int]], *, chunk_steps: int, chunks: int) -> list[Chunk]:
    """A run in which environment n has episodes of these lengths, one after the other, for ever.

    The observation is `[episode, step in it]`, so that each step says where it belongs; the last
    observation of an episode of length L is `[episode, L]`. Odd episodes terminate, even truncate.
    """
    total, envs = chunk_steps * chunks, len(lengths)
    observations = np.zeros((total + 1, envs, 2), np.float32)
    terminated = np.zeros((total, envs), np.bool_)
    truncated = np.zeros((total, envs), np.bool_)
    finals: dict[tuple[int, int], tuple[int, int]] = {}
    for env, cycle in enumerate(lengths):
        episode, step = 0, 0
        for t in range(total):
            observations[t, env] = episode, step
            step += 1
            if step == cycle[episode % len(cycle)]:
                (terminated if episode % 2 else truncated)[t, env] = True
                finals[t, env] = (episode, step)
                episode, step = episode + 1, 0
        observations[total, env] = episode, step
    return [
        _cut(index, chunk_steps, observations, terminated, truncated, finals)
        for index in range(chunks)
    ]


def _cut(
    index: int,
    steps: int,
    observations: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    finals: dict[tuple[int, int], tuple[int, int]],
) -> Chunk:
    first, envs = index * steps, observations.shape[1]
    rows = slice(first, first + steps)
    ends = np.flatnonzero(terminated[rows] | truncated[rows])
    places = [(int(end) // envs, int(end) % envs) for end in ends]
    told = [finals[first + step, env] for step, env in places]
    return Chunk(
        spec_fingerprint=FINGERPRINT,
        policy_version=index + 1,
        policy_digest=bytes(32),
        first_step=first,
        observations=observations[first : first + steps + 1],
        actions=np.arange(first, first + steps).repeat(envs).reshape(steps, envs),
        log_probs=np.zeros((steps, envs), np.float32),
        rewards=np.ones((steps, envs), np.float32),
        terminated=terminated[rows],
        truncated=truncated[rows],
        final_index=ends.astype(np.int32),
        final_observations=np.array(told, np.float32).reshape(len(told), 2),
        episodes=tuple(
            Episode(env, step, float(length), length)
            for (step, env), (_, length) in zip(places, told, strict=True)
        ),
    )


def join(items: list[tuple[int, Chunk]]) -> tuple[list[WholeEpisode], EpisodeJoiner]:
    joiner = EpisodeJoiner()
    return [episode for seq, chunk in items for episode in joiner.add(seq, chunk)], joiner


def check_whole(episode: WholeEpisode, lengths: list[list[int]]) -> int:
    """Checks that an episode is one from beginning to end; gives its number."""
    number = int(episode.observations[0, 0])
    cycle = lengths[episode.env]
    assert episode.length == cycle[number % len(cycle)]
    steps = np.arange(episode.length + 1)
    np.testing.assert_array_equal(episode.observations[:, 1], steps)
    assert (episode.observations[:, 0] == number).all()
    assert np.diff(episode.actions).tolist() == [1] * (episode.length - 1)
    assert (episode.terminated, episode.truncated) == (number % 2 == 1, number % 2 == 0)
    return number


lengths_of = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3)


@given(lengths_of, st.integers(1, 5), st.integers(1, 8))
def test_a_run_without_gaps_gives_every_episode_that_ended_and_counts_the_rest(
    lengths: list[list[int]], chunk_steps: int, chunks: int
) -> None:
    run = run_of(lengths, chunk_steps=chunk_steps, chunks=chunks)
    episodes, joiner = join(list(enumerate(run)))
    assert len(episodes) == sum(len(chunk.episodes) for chunk in run)
    for env in range(len(lengths)):
        numbers = [check_whole(e, lengths) for e in episodes if e.env == env]
        assert numbers == list(range(len(numbers)))
    whole = sum(episode.length for episode in episodes)
    assert joiner.left_out == sum(chunk.transitions for chunk in run) - whole


@given(lengths_of, st.integers(1, 5), st.sets(st.integers(0, 7)))
def test_no_episode_reaches_across_a_chunk_that_is_missing(
    lengths: list[list[int]], chunk_steps: int, missing: set[int]
) -> None:
    run = run_of(lengths, chunk_steps=chunk_steps, chunks=8)
    there = [(seq, chunk) for seq, chunk in enumerate(run) if seq not in missing]
    episodes, joiner = join(there)
    for episode in episodes:
        check_whole(episode, lengths)
        assert not missing & set(range(episode.first.seq, episode.last.seq + 1))
    whole = sum(episode.length for episode in episodes)
    assert joiner.left_out == sum(chunk.transitions for _, chunk in there) - whole


def test_steps_that_were_never_recorded_tear_an_episode_as_a_missing_chunk_does() -> None:
    run = run_of([[5]], chunk_steps=4, chunks=4)
    torn = [(0, run[0]), *((seq - 1, run[seq]) for seq in (2, 3))]  # seq goes on, steps do not
    episodes, _ = join(torn)
    assert [int(episode.observations[0, 0]) for episode in episodes] == [2]


def test_a_run_that_began_with_steps_nobody_recorded_waits_for_the_next_start() -> None:
    run = run_of([[3]], chunk_steps=4, chunks=3)
    episodes, _ = join([(0, run[1]), (1, run[2])])
    assert [check_whole(episode, [[3]]) for episode in episodes] == [2, 3]


def test_an_episode_says_which_versions_acted_and_where_it_lies() -> None:
    run = run_of([[6]], chunk_steps=4, chunks=3)
    first, second = join(list(enumerate(run)))[0]
    assert first.policy_versions.tolist() == [1, 1, 1, 1, 2, 2]
    assert (first.first.seq, first.first.step, first.last.seq, first.last.step) == (0, 0, 1, 1)
    assert (second.first.seq, second.first.step, second.last.seq, second.last.step) == (1, 2, 2, 3)


@pytest.mark.parametrize("terminated", [True, False])
def test_a_step_that_ends_both_ways_says_both(terminated: bool) -> None:  # noqa: FBT001 a parameter
    (chunk,) = run_of([[4]], chunk_steps=4, chunks=1)
    chunk.terminated[3, 0] = terminated
    (episode,), _ = join([(0, chunk)])
    assert (episode.terminated, episode.truncated) == (terminated, True)
