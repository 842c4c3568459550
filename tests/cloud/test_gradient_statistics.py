"""Statistics pushed with gradients to a real learner: what becomes of them, and of their sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradient_cloud import DEADLINE_S, SPEC, Cloud, Device, config_in, learning
from numpy.typing import NDArray
from sim import until
from strategies import RUN_ID

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import NetworkConfig
from cloud_learner.gradients.making import live_of
from cloud_learner.training.start import build_brain
from shoal.errors import ConfigError
from shoal.observation_statistics import MAX_NUMBERS, ObservationStatistics
from shoal.policy import decode_bundle
from shoal.spaces import EnvSpec, unbounded
from shoal.tensors import decode_tensors
from shoal.v1 import statistics_pb2
from shoal.v1 import update_pb2 as pb

Scenario = Callable[[Cloud], Coroutine[Any, Any, None]]
Play = Callable[..., None]
ROWS = np.random.default_rng(0).normal([0.0, 300.0, 1e-2, -5.0], [1.0, 900.0, 1e-3, 2.0], (80, 4))


@pytest.fixture
def play(tmp_path: Path) -> Play:
    async def perform(scenario: Scenario, normalize: bool) -> None:  # noqa: FBT001 - a test's
        async with asyncio.timeout(DEADLINE_S):
            async with learning(tmp_path, config_in(tmp_path, normalize=normalize)) as cloud:
                await scenario(cloud)

    return lambda scenario, *, normalize=True: asyncio.run(perform(scenario, normalize))


async def telling(
    device: Device, rows: NDArray[np.float64], *, run_id: bytes = RUN_ID
) -> pb.PushUpdateRequest:
    """An update with the statistics of all rows so far."""
    request = await device.update(run_id=run_id)
    request.statistics.CopyFrom(ObservationStatistics.of(rows).to_pb())
    return request


def shift_of(cloud: Cloud, version: int) -> NDArray[np.float32]:
    """What a published version subtracts from observations."""
    found = cloud.core.parts.policy_log.get(version)
    assert found is not None
    shift = decode_tensors(decode_bundle(found.bundle).tensors)["input.shift"]
    assert shift.dtype == np.float32
    return shift.astype(np.float32)


async def published_with(cloud: Cloud, rows: NDArray[np.float64]) -> int:
    """Waits for a version that normalizes by all these rows; its number."""
    versions = cloud.core.parts.versions

    def normalizes_by_them() -> bool:
        return bool(np.allclose(shift_of(cloud, versions.highest), rows.mean(0), rtol=1e-5))

    await until(normalizes_by_them)
    return versions.highest


def seen_by(cloud: Cloud) -> ObservationStatistics:
    assert cloud.source.normalizer is not None
    seen = cloud.source.normalizer.seen
    assert seen is not None
    return seen


def test_the_next_version_normalizes_by_what_all_devices_observed(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        one, two = await cloud.device(), await cloud.device("pi-2")
        np.testing.assert_array_equal(shift_of(cloud, 1), np.zeros(4))
        first = await telling(one, ROWS[:10])
        late = await telling(one, ROWS[:30])
        other = await telling(two, ROWS[30:])
        await one.push(late)
        await one.push(first)
        await two.push(other)
        await one.push(late)
        assert cloud.counters["updates_refused_duplicate"] == 1
        assert seen_by(cloud).count == len(ROWS)
        version = await published_with(cloud, ROWS)
        weights = await one.weights(acted_version=version)
        assert weights is not None
        assert weights.normalizer is not None
        assert weights.normalizer.version == version
        np.testing.assert_array_equal(weights.normalizer.shift, shift_of(cloud, version))
        np.testing.assert_allclose(1 / weights.normalizer.gain, ROWS.std(0), rtol=1e-5)

    play(scenario)


def test_weights_come_with_the_normalizer_of_the_version_that_acted(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        for made in range(3):
            await device.push(await telling(device, ROWS[: 20 * (made + 1)]))
            newest = await published_with(cloud, ROWS[: 20 * (made + 1)])
        assert newest >= 4
        for acted in range(1, newest + 1):
            weights = await device.weights(acted_version=acted)
            assert weights is not None
            assert weights.normalizer is not None
            version = weights.normalizer.version
            assert version == (acted if acted > 1 else newest), "the first had seen nothing"
            np.testing.assert_array_equal(weights.normalizer.shift, shift_of(cloud, version))
        assert await device.weights(have=3, acted_version=newest) is None, "held already"

    play(scenario)


def liar(**fields: object) -> statistics_pb2.ObservationStatistics:
    message = ObservationStatistics.of(ROWS).to_pb()
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def test_statistics_that_cannot_be_are_counted_by_reason_told_and_not_averaged_in(
    play: Play,
) -> None:
    async def scenario(cloud: Cloud) -> None:
        honest, device = await cloud.device(), await cloud.device("pi-2")
        await honest.push(await telling(honest, ROWS))
        lies = {
            "count": liar(count=1 << 50),
            "shape": liar(mean=bytes(24)),
            "non_finite": liar(mean=np.full(4, np.nan).tobytes()),
            "negative": liar(squares=np.full(4, -1.0).tobytes()),
            "range": liar(mean=np.full(4, 1e30).tobytes()),
        }
        for reason, lie in lies.items():
            request = await device.update()
            request.statistics.CopyFrom(lie)
            assert (await device.push(request)).applied, "the gradient has rules of its own"
            assert cloud.counters[f"statistics_refused_{reason}"] == 1
        await device.push(await telling(device, ROWS[:40]))
        await device.push(await telling(device, ROWS[:20]))
        assert cloud.counters["statistics_refused_backwards"] == 1
        described = cloud.core.parts.fleet.describe("pi-2")
        assert described is not None
        told = [e.event for e in described.events if e.event.name == "statistics_refused"]
        assert {event.fields["reason"] for event in told} == {*lies, "backwards"}
        assert seen_by(cloud).count == len(ROWS) + 40

    play(scenario)


def test_who_tells_nothing_is_trained_from_and_shown(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        assert (await device.push()).applied
        described = cloud.core.parts.fleet.describe("pi-1")
        assert described is not None
        told = [e.event for e in described.events if e.event.name == "statistics_withheld"]
        assert len(told) == 1
        assert "share_moments" in told[0].message

    play(scenario)


def test_where_nothing_is_normalized_statistics_are_of_no_account(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        assert cloud.source.normalizer is None
        weights = await device.weights(acted_version=1)
        assert weights is not None
        assert weights.normalizer is None
        request = await device.update()
        request.statistics.CopyFrom(liar(mean=b"anything"))
        assert (await device.push(request)).applied
        assert not [name for name in cloud.counters if name.startswith("statistics")]
        bundle = cloud.core.parts.policy_log.get(1)
        assert bundle is not None
        assert "input.shift" not in decode_tensors(decode_bundle(bundle.bundle).tensors)

    play(scenario, normalize=False)


def assert_equal(one: ObservationStatistics, other: ObservationStatistics) -> None:
    assert one.count == other.count
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.squares, other.squares)


def test_a_learner_that_stopped_goes_on_with_statistics_and_versions(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = config_in(tmp_path, normalize=True)
        async with learning(tmp_path, config) as cloud:
            device = await cloud.device()
            for made in range(3):
                last = await telling(device, ROWS[: 10 * (made + 1)])
                await device.push(last)
            version = await published_with(cloud, ROWS[:30])
            before, shift = seen_by(cloud), shift_of(cloud, version)
        async with learning(tmp_path, replace(config, seed=9), born=False) as cloud:
            await until(lambda: cloud.core.trainer.standard() is not None)
            assert_equal(seen_by(cloud), before)
            assert cloud.source.normalizer is not None
            np.testing.assert_array_equal(cloud.source.normalizer.acting(version).shift, shift)
            again = await cloud.device()
            assert (await again.push(last)).reason == "duplicate"
            assert_equal(seen_by(cloud), before)
            again.seq = device.seq
            await again.push(await telling(again, ROWS[:40]))
            assert_equal(seen_by(cloud), ObservationStatistics.of(ROWS[:40]))
            # A device that started again is another run: it counts beside the one before.
            again.seq = 0
            await again.push(await telling(again, ROWS[40:], run_id=RUN_ID[::-1]))
            assert seen_by(cloud).count == len(ROWS)
            await published_with(cloud, ROWS)

    asyncio.run(scenario())


def test_what_a_killed_learner_lost_the_next_message_of_the_run_tells_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        config = replace(config_in(tmp_path, normalize=True), checkpoint_interval_s=1e9)
        async with learning(tmp_path, config, kill=True) as cloud:
            device = await cloud.device()
            for made in range(3):
                await device.push(await telling(device, ROWS[: 10 * (made + 1)]))
            seq = device.seq
        async with learning(tmp_path, config, born=False) as cloud:
            await until(lambda: cloud.core.trainer.standard() is not None)
            assert cloud.source.normalizer is not None
            assert cloud.source.normalizer.seen is None, "no checkpoint holds it"
            device = await cloud.device()
            device.seq = seq
            await device.push(await telling(device, ROWS[:40]))
            assert_equal(seen_by(cloud), ObservationStatistics.of(ROWS[:40]))

    asyncio.run(scenario())


def test_observations_of_too_many_numbers_are_refused_by_name(tmp_path: Path) -> None:
    config = config_in(tmp_path, normalize=True, max_update_bytes=1 << 30)
    spec = EnvSpec("Wide-v0", unbounded((MAX_NUMBERS + 1,)), SPEC.action)
    narrow = replace(config.training, network=NetworkConfig(hidden=(1,), normalize=True))
    config = replace(config, training=narrow)
    brain = build_brain(spec, config, load_algorithm(config.training.algorithm, {}))
    with pytest.raises(ConfigError, match=f"{MAX_NUMBERS} at most"):
        live_of(brain, config)
