from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted, collate
from cloud_learner.training.replay import Replay
from cloud_learner.training.source import UNBOUNDED, Moment
from shoal.envelope import ChunkKey
from shoal.ranges import Ranges

SPEC = cartpole_spec()


def admitted(
    position: int, *, steps: int = 4, envs: int = 2, updates: int = 0, seed: int = 0
) -> Admitted:
    chunk = make_chunk(SPEC, steps=steps, envs=envs, seed=seed)
    return Admitted(ChunkKey("pi-1", RUN_ID, position), position, chunk, updates)


def positions(items: tuple[Admitted, ...]) -> list[int]:
    return [item.position for item in items]


def test_draws_the_oldest_chunks_first_and_only_whole_ones() -> None:
    replay = Replay(1000, batch_steps=10)
    replay.add([admitted(n) for n in range(1, 6)])
    draw = replay.take(Moment(0))
    assert positions(draw.taken) == [1, 2]
    assert replay.steps == 3 * 8


def test_takes_nothing_while_a_batch_is_not_there() -> None:
    replay = Replay(1000, batch_steps=9)
    replay.add([admitted(1)])
    assert not replay.ready()
    assert replay.take(Moment(0)).taken == ()
    assert not replay.take(Moment(0)).work
    assert replay.fill == 8 / 9
    replay.add([admitted(2)])
    assert replay.ready()
    assert replay.fill == 1.0


def test_a_waiting_learner_wakes_when_the_last_chunk_of_a_batch_comes() -> None:
    async def scenario() -> None:
        replay = Replay(1000, batch_steps=16)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(replay.wait_ready())
            replay.add([admitted(1)])
            await asyncio.sleep(0)
            assert not waiting.done()
            replay.add([admitted(2)])

    asyncio.run(scenario())


def test_chunks_over_the_lag_bound_leave_as_expired_and_are_never_taken() -> None:
    replay = Replay(1000, batch_steps=8)
    replay.add([admitted(1, updates=10), admitted(2, updates=3), admitted(3, updates=10)])
    draw = replay.take(Moment(20, max_lag=10))
    assert positions(draw.expired) == [2]
    assert positions(draw.taken) == [1]


def test_without_a_lag_bound_nothing_is_too_old() -> None:
    replay = Replay(1000, batch_steps=8)
    replay.add([admitted(1, updates=0)])
    draw = replay.take(Moment(10**12, max_lag=UNBOUNDED))
    assert positions(draw.taken) == [1]


def test_a_full_replay_evicts_the_oldest_and_says_so_with_the_next_draw() -> None:
    replay = Replay(16, batch_steps=8)
    replay.add([admitted(n) for n in range(1, 5)])
    assert replay.steps == 16
    assert replay.cursor.waiting == Ranges.of([1, 2])
    draw = replay.take(Moment(0))
    assert positions(draw.expired) == [1, 2]
    assert positions(draw.taken) == [3]
    assert replay.cursor == Cursor(3, Ranges())


def test_a_full_replay_of_many_lengths_still_gives_a_batch() -> None:
    replay = Replay(24, batch_steps=20)
    replay.add([admitted(1, steps=4), admitted(2, steps=8)])
    assert positions(replay.take(Moment(0)).taken) == [2]


def test_chunks_of_different_length_are_never_stacked() -> None:
    replay = Replay(1000, batch_steps=16)
    replay.add([admitted(1, steps=4), admitted(2, steps=8), admitted(3, steps=4)])
    draw = replay.take(Moment(0))
    assert len({item.chunk.steps for item in draw.taken}) == 1


def test_the_cursor_tells_apart_what_was_taken_from_what_was_passed_over() -> None:
    replay = Replay(1000, batch_steps=32)
    replay.add([admitted(1, steps=4), admitted(2, steps=8), admitted(3, steps=8)])
    assert positions(replay.take(Moment(0)).taken) == [2, 3]
    cursor = replay.cursor
    assert [n for n in range(1, 6) if not cursor.covers(n)] == [1, 4, 5]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=4))
def test_a_batch_holds_each_column_of_each_chunk_at_its_own_place(
    shapes: list[tuple[int, int]],
) -> None:
    steps = shapes[0][0]
    items = [
        admitted(n, steps=steps, envs=envs, updates=n, seed=n) for n, (_, envs) in enumerate(shapes)
    ]
    batch = collate(items, updates_now=100)
    first = 0
    for item in items:
        chunk, last = item.chunk, first + item.chunk.envs
        columns = slice(first, last)
        np.testing.assert_array_equal(batch.observations[:, columns], chunk.observations)
        np.testing.assert_array_equal(batch.actions[:, columns], chunk.actions)
        np.testing.assert_array_equal(batch.terminated[:, columns], chunk.terminated)
        np.testing.assert_array_equal(batch.truncated[:, columns], chunk.truncated)
        assert (batch.lags[columns] == 100 - item.version_updates).all()
        first = last
    ends = np.flatnonzero(batch.terminated | batch.truncated)
    np.testing.assert_array_equal(batch.final_index, ends)
    for flat, final in zip(batch.final_index, batch.final_observations, strict=True):
        step, column = divmod(int(flat), batch.rewards.shape[1])
        first = 0
        for item in items:
            if column < first + item.chunk.envs:
                own = step * item.chunk.envs + column - first
                at = int(np.searchsorted(item.chunk.final_index, own))
                np.testing.assert_array_equal(final, item.chunk.final_observations[at])
                break
            first += item.chunk.envs


def test_a_batch_says_where_episodes_begin_and_what_the_policy_remembered_before() -> None:
    remembering = [
        replace(admitted(n).chunk, initial_state=np.full((2, 3), n, np.float32)) for n in (1, 2)
    ]
    items = [
        Admitted(ChunkKey("pi-1", RUN_ID, n), n, chunk, 0) for n, chunk in enumerate(remembering)
    ]
    batch = collate(items, updates_now=0)
    np.testing.assert_array_equal(batch.initial_state[:, 0], [1, 1, 2, 2])
    assert not batch.starts[0].any()
    np.testing.assert_array_equal(batch.starts[1:], batch.ended[:-1])
    assert batch.starts.any()
    assert collate([admitted(1)], updates_now=0).initial_state.shape == (2, 0)


def test_a_batch_keeps_the_dtype_of_the_environment() -> None:
    item = admitted(1)
    images = replace(
        item.chunk,
        observations=item.chunk.observations.astype(np.uint8),
        final_observations=item.chunk.final_observations.astype(np.uint8),
    )
    batch = collate([Admitted(item.key, 1, images, 0)], updates_now=0)
    assert batch.observations.dtype == np.uint8
    assert batch.final_observations.dtype == np.uint8


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 3), st.integers(0, 20)),
            st.tuples(st.just("take"), st.integers(1, 30), st.integers(0, 20)),
        ),
        max_size=30,
    ),
    st.integers(1, 30),
)
def test_every_chunk_leaves_exactly_once_and_the_cursor_covers_exactly_those_that_left(
    acts: list[tuple[str, int, int]], batch_steps: int
) -> None:
    replay, added, left = Replay(40, batch_steps=batch_steps), 0, []
    for act, size, updates in acts:
        if act == "add":
            added += 1
            replay.add([admitted(added, steps=size, updates=updates)])
        else:
            draw = replay.take(Moment(20, max_lag=updates))
            left += positions(draw.taken) + positions(draw.expired)
        assert len(left) == len(set(left))
        cursor = replay.cursor
        assert [n for n in range(1, added + 1) if cursor.covers(n)] == sorted(left)
