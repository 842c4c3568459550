"""A full disk is a condition of the learner, though nothing tries to write to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fleet_world import World
from hypothesis import given
from hypothesis import strategies as st
from sim import on_loop, until

from cloud_learner.fleet.disk_watch import (
    DISK_FULL,
    LEAST_FREE_BYTES,
    free_bytes_of,
    is_full,
    watch_disk,
)


@given(free=st.integers(0, 1 << 40))
def test_a_disk_that_was_full_needs_twice_as_much_free_again(free: int) -> None:
    assert is_full(free, was_full=False) == (free < LEAST_FREE_BYTES)
    assert is_full(free, was_full=True) == (free < 2 * LEAST_FREE_BYTES)


@on_loop
async def test_the_state_says_that_the_disk_is_full_until_it_is_not(tmp_path: Path) -> None:
    fleet, free = World().fleet, [1000.0]

    def free_of(directory: Path) -> int:
        if free[0] < 0:
            raise OSError("gone")
        return int(free[0])

    watching = asyncio.create_task(watch_disk(tmp_path, fleet, free_of=free_of, every_s=0.0))
    try:
        await until(lambda: fleet.learner_state == DISK_FULL)
        assert "free space" in fleet.training().learner_problem
        free[0] = -1.0  # that it cannot be looked at is not for this to say
        await asyncio.sleep(0)
        assert fleet.learner_state == DISK_FULL
        free[0] = 3.0 * LEAST_FREE_BYTES
        await until(lambda: fleet.learner_state != DISK_FULL)
    finally:
        watching.cancel()


def test_a_real_disk_has_some_number_of_bytes_free(tmp_path: Path) -> None:
    assert free_bytes_of(tmp_path) >= 0
