"""What a device tells of its observations with its gradients, and whose normalizer they are of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gradient_device import SPEC, world
from mqtt_learner import asyncs
from strategies import make_chunk

from shoal.observation_statistics import ObservationStatistics


@asyncs
async def test_a_learner_that_normalizes_is_told_of_all_observations_so_far(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, passes=2) as here:
        here.server.normalizes = True
        await here.endpoint.start()
        rows = np.zeros((0, 4))
        for number in range(3):
            here.queue.put(chunk := make_chunk(SPEC, seed=number))
            await here.server.until(2 * number + 2)
            rows = np.concatenate([rows, chunk.observations[:-1].reshape(-1, 4)])
            first, second = here.server.pushed[-2:]
            told = ObservationStatistics.from_pb(first.statistics, numbers=4)
            assert told.count == len(rows)
            np.testing.assert_allclose(told.mean, rows.mean(0), rtol=1e-9)
            np.testing.assert_allclose(told.squares / told.count, rows.var(0), rtol=1e-9)
            assert not second.HasField("statistics"), "a chunk's first update tells of it"


@asyncs
async def test_weights_are_asked_for_with_the_normalizer_of_the_version_that_acted(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        here.server.normalizes = True
        here.server.answers = ["lag", "lag", "lag"]  # so that the weights stay the same
        await here.endpoint.start()
        for number, version in enumerate((7, 7, 8)):
            here.queue.put(replace(make_chunk(SPEC), policy_version=version))
            await here.server.until(number + 1)
        assert here.server.acted == [7, 7, 8]
        assert here.server.asked == [0, 1, 0], "those that are held come with another normalizer"
        taken = [weights.normalizer.version for weights in here.worker.taken if weights.normalizer]
        assert taken == [7, 8]


@asyncs
async def test_a_chunk_is_begun_again_where_its_normalizer_changes_between_passes(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, passes=3) as here:
        here.server.normalizes = True
        await here.endpoint.start()
        here.put()
        await here.server.until(3)
        assert len(here.worker.begun) == 1
        here.server.changes = True  # as while the version that acted is not known
        here.put()
        await here.server.until(6)
        assert len(here.worker.begun) == 4


@asyncs
@pytest.mark.parametrize("normalizes", [False, True])
async def test_statistics_go_only_where_they_are_asked_for_and_with_leave(
    tmp_path: Path,
    normalizes: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async with world(tmp_path, share_moments=not normalizes) as here:
        here.server.normalizes = normalizes
        await here.endpoint.start()
        here.put(2)
        await here.server.until(2)
        assert not any(update.HasField("statistics") for update in here.server.pushed)
