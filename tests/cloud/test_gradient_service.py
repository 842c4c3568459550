"""Gradients pushed over gRPC with mutual TLS to a real learner; only the broker is left out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sim import until
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.app import Core, open_core
from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.gradients.making import max_request_bytes, standard_of
from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.gradients.source import GradientSource
from cloud_learner.gradients.worker import Worker
from cloud_learner.grpc_server import GrpcServer
from cloud_learner.state_dir import StateDir
from cloud_learner.uplink.admission import decide
from cloud_learner.uplink.arrivals import Birth
from shoal.errors import CheckpointError
from shoal.gradients import CODECS, Encoder, Weights, decode_weights
from shoal.identity import Identity
from shoal.layout import ObservationLayout
from shoal.moments import Moments
from shoal.v1 import device_pb2, trajectory_pb2
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoal.v1 import update_pb2 as pb
from shoalctl.pki import FleetPki, Role

SPEC = cartpole_spec()
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
DEADLINE_S = 60.0
INTERVAL = 4
SMALL: dict[str, object] = {"max_lag": 5, "max_norm": 50.0, "shards": 3}


def config_in(directory: Path, **gradients: object) -> LearnerConfig:
    return LearnerConfig(
        fleet="reef",
        identity=directory,
        state_dir=directory / "state",
        training=TrainingConfig(
            mode="gradients", network=NetworkConfig(hidden=(8,)), publish_interval=INTERVAL
        ),
        gradients=GradientsConfig(**(SMALL | gradients)),  # type: ignore[arg-type] # what a test says
        checkpoint_interval_s=0.0,
        tensorboard=False,
    )


@dataclass
class Cloud:
    """A learner that is trained by pushes, and devices to push."""

    core: Core
    port: int
    pki: FleetPki
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def source(self) -> GradientSource:
        source = self.core.parts.replay
        assert isinstance(source, GradientSource)
        return source

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.core.parts.counters)

    @property
    def flat(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        assert self.source.live is not None
        return self.source.live.shards.flat.copy()

    def be_born(self) -> None:
        status = device_pb2.Status(
            device_id="pi-1",
            run_id=RUN_ID,
            state=device_pb2.DEVICE_STATE_ONLINE,
            env_spec=SPEC.to_pb(),
        )
        self.core.parts.fleet.note_status(Birth(status, SPEC))

    async def device(self, name: str = "pi-1", *, role: Role = Role.DEVICE) -> Device:
        directory = self.pki.directory / "identities" / name
        if not directory.exists():
            self.pki.issue(name, role)
        pems = Identity(directory, name, None).read_pems()
        keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        channel = grpc.aio.secure_channel(
            f"localhost:{self.port}", keys, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        await self.stack.enter_async_context(channel)
        return Device(name, rpc.ParameterServerStub(channel))


@dataclass
class Device:
    """One that computes gradients of made-up chunks."""

    name: str
    stub: rpc.ParameterServerStub
    seq: int = 0

    async def weights(self, have: int = 0, *, fleet: str = "reef") -> Weights | None:
        request = pb.GetWeightsRequest(fleet=fleet, device_id=self.name, have_updates=have)
        data = b""
        async for part in self.stub.GetWeights(request, timeout=DEADLINE_S):
            assert part.offset == len(data)
            data += part.data
        return decode_weights(data) if data else None

    async def update(self, *, norm: float = 1.0, **changes: object) -> pb.PushUpdateRequest:
        weights = await self.weights()
        assert weights is not None
        rng = np.random.default_rng(self.seq)
        gradient = rng.normal(size=len(weights.values)).astype(np.float32)
        gradient *= np.float32(norm / np.linalg.norm(gradient))
        moments = Moments.of(
            make_chunk(SPEC, seed=self.seq).observations,
            ObservationLayout.of(SPEC.observation),
        )
        assert moments is not None
        request = pb.PushUpdateRequest(
            fleet="reef",
            device_id=self.name,
            run_id=RUN_ID,
            seq=self.seq,
            layout_digest=weights.layout_digest,
            updates=weights.updates,
            policy_version=1,
            transitions=8,
            codec=CODECS["float32"],
            parameters=len(gradient),
            body=Encoder("float32").encode(gradient),
            episodes=[trajectory_pb2.Episode(env=0, step=1, total_return=12.0, length=12)],
            metrics={"entropy": 0.5, "not a name": 1.0, "value_loss": float("nan")},
            moments=moments.to_pb(),
        )
        for name, value in changes.items():
            setattr(request, name, value)
        self.seq += 1
        return request

    async def push(self, request: pb.PushUpdateRequest | None = None) -> pb.PushUpdateResponse:
        request = request or await self.update()
        response = await self.stub.PushUpdate(request, timeout=DEADLINE_S)
        assert isinstance(response, pb.PushUpdateResponse)
        return response


@asynccontextmanager
async def learning(
    directory: Path, config: LearnerConfig, *, born: bool = True, kill: bool = False
) -> AsyncIterator[Cloud]:
    """A learner on its state directory; at the end it is stopped, or killed: nothing is saved."""
    pki_path = directory / "pki"
    pki = FleetPki.load(pki_path) if pki_path.exists() else FleetPki.create(pki_path, "reef")
    learner = pki_path / "identities" / "learner"
    if not learner.exists():
        pki.issue("learner", Role.LEARNER)
    (directory / "state").mkdir(exist_ok=True)
    state = StateDir.open(config.state_dir, resume=True)
    async with AsyncExitStack() as stack:
        core = open_core(config, state, KEY, stack, rng=random.Random(0))
        server = await stack.enter_async_context(
            GrpcServer(
                "127.0.0.1",
                0,
                Identity(learner, "learner", None),
                [core.parts.parameter_server],
                max_request_bytes=max_request_bytes(config),
            )
        )
        cloud = Cloud(core, server.port, pki)
        async with cloud.stack, asyncio.TaskGroup() as group:
            training = group.create_task(core.trainer.serve(core.restored))
            if born:
                cloud.be_born()
                await until(lambda: core.trainer.standard() is not None)
            yield cloud
            core.trainer._midway = core.trainer._midway or kill
            training.cancel()


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
