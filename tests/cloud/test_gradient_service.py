"""Gradients pushed over gRPC with mutual TLS to a real learner; only the broker is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from gradient_cloud import DEADLINE_S, INTERVAL, SPEC, Cloud, Device, config_in, learning
from sim import until
from strategies import make_chunk

from cloud_learner.config import TrainingConfig
from cloud_learner.gradients.making import standard_of
from cloud_learner.gradients.worker import Worker
from cloud_learner.uplink.admission import decide
from shoal.gradients import CODECS, Encoder
from shoal.v1 import update_pb2 as pb
from shoalctl.pki.pki import Role

Scenario = Callable[[Cloud], Coroutine[Any, Any, None]]
Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    async def perform(scenario: Scenario, gradients: dict[str, Any]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            async with learning(tmp_path, config_in(tmp_path, **gradients)) as cloud:
                await scenario(cloud)

    return lambda scenario, **gradients: asyncio.run(perform(scenario, gradients))


def test_an_update_changes_the_weights_and_a_policy_follows_every_few(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device, before = await cloud.device(), cloud.flat
        for made in range(INTERVAL):
            response = await device.push()
            assert (response.applied, response.reason, response.updates) == (True, "", made + 1)
        assert not np.array_equal(cloud.flat, before)
        await until(lambda: cloud.core.parts.fleet.training().updates == INTERVAL)
        await until(lambda: cloud.core.parts.policy_log.highest_version >= 2)
        assert cloud.counters["updates_applied"] == cloud.counters["updates_pushed"] == INTERVAL
        training = cloud.core.parts.fleet.training()
        assert (training.env_steps, training.episodes) == (8 * INTERVAL, INTERVAL)
        assert training.return_mean == 12.0
        assert training.audit.produced == 0
        assert training.audit.balanced

    play(scenario)


def test_too_few_updates_for_a_policy_are_published_after_a_while(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        await (await cloud.device()).push()
        await until(lambda: cloud.core.parts.policy_log.highest_version >= 2)

    play(scenario)


def test_the_same_update_again_is_not_applied_twice(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        request = await device.update()
        assert (await device.push(request)).applied
        after = cloud.flat
        again = await device.push(request)
        assert (again.applied, again.reason) == (False, "duplicate")
        np.testing.assert_array_equal(cloud.flat, after)
        assert cloud.core.parts.stats.env_steps == 8
        assert cloud.core.parts.stats.episodes == 1

    play(scenario)


def test_what_is_refused_is_named_counted_and_changes_nothing(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        for _ in range(7):
            await device.push()
        before = cloud.flat
        body = np.zeros(len(before), "<f4")
        body[3] = np.nan
        refused = {
            "lag": await device.update(updates=1),
            "norm": await device.update(norm=51.0),
            "layout": await device.update(layout_digest=bytes(32)),
            "non_finite": await device.update(body=body.tobytes()),
            "malformed": await device.update(body=b"short"),
        }
        for reason, request in refused.items():
            response = await device.push(request)
            assert (response.applied, response.reason) == (False, reason)
        for request in (
            await device.update(run_id=b"short"),
            await device.update(codec=99),
            await device.update(updates=1 << 40),
            await device.update(parameters=len(before) + 1),
            await device.update(transitions=1 << 50),
        ):
            assert not (await device.push(request)).applied
        broken = await device.update()
        broken.moments.mean = b""
        assert (await device.push(broken)).reason == "malformed"
        broken = await device.update()
        broken.episodes[0].total_return = float("inf")
        assert (await device.push(broken)).reason == "malformed"
        np.testing.assert_array_equal(cloud.flat, before)
        counts = cloud.core.parts.fleet.describe("pi-1")
        assert counts is not None
        assert dict(counts.device.gradients) == {
            "applied": 7,
            "lag": 2,
            "norm": 1,
            "layout": 2,
            "non_finite": 1,
            "malformed": 6,
        }
        assert cloud.counters["updates_pushed"] == 19
        assert cloud.counters["updates_refused_norm"] == 1
        assert any(event.event.name == "update_refused" for event in counts.events)

    play(scenario)


def test_every_codec_is_applied(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        for codec, code in CODECS.items():
            request = await device.update()
            gradient = np.frombuffer(request.body, "<f4")
            request.codec, request.body = code, Encoder(codec).encode(gradient)
            before = cloud.flat
            assert (await device.push(request)).applied
            assert not np.array_equal(cloud.flat, before)

    play(scenario)


@pytest.mark.parametrize("threads", ["never", "always"])
def test_a_step_is_clipped_to_its_norm_and_shorter_the_further_behind(
    play: Play, threads: str
) -> None:
    rate, clip = 0.1, 0.5

    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        for norm, lag in ((0.25, 0), (2.0, 0), (0.25, 3), (2.0, 3)):
            request = await device.update(norm=norm)
            gradient = np.frombuffer(request.body, "<f4")
            request.updates -= lag
            before = cloud.flat
            assert (await device.push(request)).applied
            wanted = rate * (1 + lag) ** -0.5 * min(1.0, clip / norm) * gradient
            np.testing.assert_allclose(before - cloud.flat, wanted, rtol=1e-4, atol=1e-6)
            for _ in range(2):  # so that there are weights to be behind of
                await device.push()

    constant = {"optimiser": "sgd", "momentum": 0.0, "learning_rate": rate}
    play(scenario, **constant, clip_norm=clip, lag_scaling=0.5, threads=threads)


def test_in_threads_updates_are_applied_too(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        devices = [await cloud.device(name) for name in ("pi-1", "pi-2")]
        requests = [await device.update() for device in devices for _ in range(2)]
        answers = await asyncio.gather(
            *(devices[n // 2].push(request) for n, request in enumerate(requests))
        )
        assert all(answer.applied for answer in answers)
        assert cloud.counters["updates_applied"] == 4

    play(scenario, threads="always")


def test_weights_that_a_device_has_are_not_sent_again(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        await device.push()
        weights = await device.weights()
        assert weights is not None
        assert weights.updates == 1
        np.testing.assert_array_equal(weights.values, cloud.flat)
        assert weights.setup["algorithm"] == "cloud_learner.algorithms.appo:APPO"
        assert await device.weights(have=1) is None
        await device.push()
        assert await device.weights(have=1) is not None
        worker = Worker(SPEC)
        worker.take(weights)
        worker.begin(make_chunk(SPEC))
        assert worker.gradient().values.shape == weights.values.shape

    play(scenario)


def test_a_device_pushes_under_its_own_name_and_to_its_own_fleet(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device, other = await cloud.device(), await cloud.device("pi-2")
        request = await device.update()
        for stranger, changes, code in (
            (other, {}, grpc.StatusCode.PERMISSION_DENIED),
            (device, {"fleet": "pond"}, grpc.StatusCode.FAILED_PRECONDITION),
            (
                await cloud.device("operator", role=Role.OPERATOR),
                {"device_id": "operator"},
                grpc.StatusCode.PERMISSION_DENIED,
            ),
        ):
            changed = pb.PushUpdateRequest()
            changed.CopyFrom(request)
            for name, value in changes.items():
                setattr(changed, name, value)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stranger.push(changed)
            assert caught.value.code() is code
        with pytest.raises(grpc.aio.AioRpcError):
            await Device("pi-1", other.stub).weights()
        assert cloud.counters.get("updates_pushed", 0) == 0

    play(scenario)


def test_an_update_over_the_limit_is_not_read(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await device.push(await device.update(body=bytes(120_000)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    play(scenario, max_update_bytes=100_000)


def test_before_the_first_device_there_are_no_weights(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = config_in(tmp_path)
        async with learning(tmp_path, config, born=False) as cloud:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (await cloud.device()).weights()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


def test_a_learner_of_another_mode_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = config_in(tmp_path)
        config = replace(config, training=replace(config.training, mode="async"))
        async with learning(tmp_path, config) as cloud:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (await cloud.device()).weights()
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert 'training.mode = "gradients"' in (caught.value.details() or "")

    asyncio.run(scenario())


def test_chunks_are_rejected_and_told_why(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        config = TrainingConfig(mode="gradients")
        standard = standard_of(cloud.core.trainer.standard, config)()
        assert standard is not None
        verdict = decide(make_chunk(SPEC), standard)
        assert verdict.reason == "mode"
        assert 'mode = "gradients"' in verdict.detail

    play(scenario)


def test_policies_are_calibrated_by_what_devices_told_of_their_observations(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device()
        for _ in range(INTERVAL):
            await device.push()
        await until(lambda: cloud.core.parts.policy_log.highest_version >= 2)
        sample = cloud.core.parts.publisher._sample
        assert sample is not None
        # Those of the made-up chunks are whole numbers up to 99; a probe's are near 0.
        assert sample.observations.max() > 50

    play(scenario)


def test_a_network_whose_gradients_would_not_be_read_is_refused_with_the_number(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with learning(tmp_path, config_in(tmp_path, max_update_bytes=4096), born=False) as it:
            it.be_born()
            await until(lambda: it.core.parts.fleet.learner_state == "cannot_train")
            events = it.core.parts.fleet.describe("learner")
            assert events is not None
            assert "gradients.max_update_bytes" in events.events[0].event.message

    asyncio.run(scenario())
