"""Chunks that wait for their gradients: the control thread never waits, nothing goes untold."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st
from strategies import cartpole_spec, make_chunk

from edge_agent.gradients.queue import GradientQueue

SPEC = cartpole_spec()


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=40))
def test_the_oldest_goes_when_it_is_full_and_its_experience_is_told_with_the_next(
    most: int, puts: list[bool]
) -> None:
    queue, made, told, episodes, taken = GradientQueue(most), 0, 0, 0, 0
    waiting: list[int] = []
    for put in [*puts, *[False] * (most + 1)]:
        if put:
            queue.put(make_chunk(SPEC, seed=made))
            waiting = [*waiting, made][-most:]
            made += 1
        else:
            found = queue.take()
            assert (found is None) == (not waiting)
            if found is not None:
                wanted = make_chunk(SPEC, seed=waiting.pop(0))
                assert (found.chunk.observations == wanted.observations).all()
                told += found.transitions
                episodes += len(found.episodes)
                taken += 1
        assert len(queue) == len(waiting) <= most
    assert queue.dropped == made - taken
    assert told == 8 * made
    assert episodes == 2 * made


def test_whoever_listens_hears_of_each_chunk_from_the_thread_that_put_it() -> None:
    queue, heard = GradientQueue(2), list[int]()
    with queue.listening(lambda: heard.append(threading.get_ident())):
        queue.put(make_chunk(SPEC))
    queue.put(make_chunk(SPEC))
    assert heard == [threading.get_ident()]
