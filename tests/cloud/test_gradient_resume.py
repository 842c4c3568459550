"""A learner of the mode `gradients` that stops, or is killed, and goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gradient_cloud import config_in, learning
from sim import until

from shoal.errors import CheckpointError


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_learner_that_stopped_goes_on_with_weights_optimisers_and_counts(
    tmp_path: Path, optimiser: str
) -> None:
    async def scenario() -> None:
        config = config_in(tmp_path, optimiser=optimiser)
        async with learning(tmp_path, config) as cloud:
            device = await cloud.device()
            pushed = [await device.update() for _ in range(3)]
            for request in pushed:
                await device.push(request)
            before, seq = cloud.flat, device.seq
            assert cloud.source.live is not None
            optimisers = cloud.source.live.shards.state_dict()
        async with learning(tmp_path, replace(config, seed=9), born=False) as cloud:
            await until(lambda: cloud.core.trainer.standard() is not None)
            np.testing.assert_array_equal(cloud.flat, before)
            live = cloud.source.live
            assert live is not None
            assert live.updates == 3
            for name, value in live.shards.state_dict().items():
                np.testing.assert_array_equal(value, optimisers[name])
            stats = cloud.core.parts.stats
            assert (stats.env_steps, stats.episodes, stats.return_mean) == (24, 3, 12.0)
            device = await cloud.device()
            device.seq = seq
            assert (await device.push(pushed[-1])).reason == "duplicate"
            assert (await device.push()).updates == 4

    asyncio.run(scenario())


def test_a_learner_that_was_killed_applies_again_what_no_checkpoint_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = replace(config_in(tmp_path), checkpoint_interval_s=1e9)
        async with learning(tmp_path, config, kill=True) as cloud:
            device, start = await cloud.device(), cloud.flat
            request = await device.update()
            assert (await device.push(request)).applied
            after = cloud.flat
        async with learning(tmp_path, config, born=False) as cloud:
            await until(lambda: cloud.core.trainer.standard() is not None)
            np.testing.assert_array_equal(cloud.flat, start)
            assert (await (await cloud.device()).push(request)).applied
            np.testing.assert_array_equal(cloud.flat, after)

    asyncio.run(scenario())


def test_a_checkpoint_of_another_optimiser_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with learning(tmp_path, config_in(tmp_path)) as cloud:
            await (await cloud.device()).push()
        with pytest.raises(CheckpointError, match=r"gradients\.optimiser"):
            async with learning(tmp_path, config_in(tmp_path, optimiser="sgd")):
                pass

    asyncio.run(scenario())
