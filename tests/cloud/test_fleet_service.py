from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.fleet.service import MAX_TRAINING_WATCHES, FleetService
from cloud_learner.serving.grpc_server import GrpcServer, Service
from shoal.identity import Identity
from shoal.policy import Golden
from shoal.tensors import Array
from shoal.v1 import device_pb2, fleet_pb2, fleet_pb2_grpc, parameter_server_pb2_grpc
from shoal.v1 import parameter_server_pb2 as server_pb2
from shoalctl.pki.pki import FleetPki, Role

DEADLINE_S = 60.0
NOW_S = 1_700_000_000.0


@dataclass(frozen=True)
class SmallPolicy:
    tensors: dict[str, Array]
    golden: Golden
    precision: str = "int8"
    kl_quantization: float = 0.002
    agreement: float = 0.9


class TwoDevices:
    """A fleet view with two devices; `env_steps` counts how often training was looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.active = {"pi-1": 2, "pi-2": 1}

    def devices(self) -> list[fleet_pb2.Device]:
        return [
            fleet_pb2.Device(
                device_id=name,
                health=fleet_pb2.HEALTH_ONLINE,
                telemetry=device_pb2.Telemetry(active_version=version),
            )
            for name, version in self.active.items()
        ]

    def describe(self, device_id: str) -> fleet_pb2.DescribeDeviceResponse | None:
        found = [device for device in self.devices() if device.device_id == device_id]
        return fleet_pb2.DescribeDeviceResponse(device=found[0]) if found else None

    def audit(self) -> fleet_pb2.AuditResponse:
        return fleet_pb2.AuditResponse(total=fleet_pb2.Audit(produced=3, trained=3, balanced=True))

    def training(self) -> fleet_pb2.Training:
        self.looks += 1
        return fleet_pb2.Training(env_steps=self.looks)

    def staleness_of(self, version: int) -> float | None:
        return 0.125 if version == 2 else None


class Cloud:
    """A learner's services behind real TLS."""

    def __init__(self, pki: FleetPki, log: PolicyLog, server: ParameterServer) -> None:
        self.pki, self.log, self.server = pki, log, server
        self.view = TwoDevices()
        self.service = FleetService(self.view, log, server, fleet="reef", clock=lambda: NOW_S)
        self.port = 0
        self.stack = AsyncExitStack()

    async def channel(self, name: str, role: Role) -> grpc.aio.Channel:
        directory = self.pki.directory / "identities" / name
        if not directory.exists():
            self.pki.issue(name, role)
        pems = Identity(directory, name, None).read_pems()
        keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        options = (("grpc.use_local_subchannel_pool", 1),)  # a connection of its own
        channel = grpc.aio.secure_channel(f"localhost:{self.port}", keys, options)
        return await self.stack.enter_async_context(channel)

    async def stub(
        self, name: str = "operator", role: Role = Role.OPERATOR
    ) -> fleet_pb2_grpc.FleetStub:
        return fleet_pb2_grpc.FleetStub(await self.channel(name, role))

    def publish(self) -> Published:
        golden = Golden(
            observations=np.zeros((1, 4), np.float32),
            noise=np.zeros((1, 2), np.float32),
            actions=np.array([1]),
            log_probs=np.array([-0.5], np.float32),
        )
        policy = SmallPolicy({"weight.0": np.zeros(8, np.int8)}, golden)
        published = self.log.publish(
            policy, graph=b"graph", updates=16, spec_fingerprint=bytes(32), reason="resume"
        )
        self.server.announce(published)
        return published


Scenario = Callable[[Cloud], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    pki = FleetPki.create(tmp_path / "pki", "reef")
    identity = Identity(pki.issue("learner", Role.LEARNER), "learner", None)

    async def perform(scenario: Scenario) -> None:
        key = Ed25519PrivateKey.generate()
        path = tmp_path / "policies"
        with PolicyLog(path, key, "reef", clock=lambda: NOW_S - 60.0) as log:
            cloud = Cloud(pki, log, ParameterServer(log, fleet="reef"))
            services: tuple[Service, ...] = (cloud.server, cloud.service)
            async with (
                asyncio.timeout(DEADLINE_S),
                GrpcServer("127.0.0.1", 0, identity, services) as endpoint,
            ):
                cloud.port = endpoint.port
                async with cloud.stack:
                    await scenario(cloud)

    return lambda scenario: asyncio.run(perform(scenario))


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for lies behind a connection
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Refusal:
    code: grpc.StatusCode
    details: str


async def refusal(call: Awaitable[object]) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Refusal(caught.value.code(), caught.value.details() or "")


def test_devices_are_listed_and_described_with_the_bytes_they_were_sent(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        published = cloud.publish()
        channel = await cloud.channel("pi-1", Role.DEVICE)
        device = parameter_server_pb2_grpc.ParameterServerStub(channel)
        await device.Watch(server_pb2.WatchRequest(fleet="reef", device_id="pi-1")).read()
        await eventually(lambda: cloud.server.traffic("pi-1").refreshes == 1)
        stub = await cloud.stub()
        listed = await stub.ListDevices(fleet_pb2.ListDevicesRequest(fleet="reef"))
        sent = {device.device_id: device.bytes_down_sent for device in listed.devices}
        assert sent == {"pi-1": len(published.bundle), "pi-2": 0}
        request = fleet_pb2.DescribeDeviceRequest(fleet="reef", device_id="pi-1")
        described = await stub.DescribeDevice(request)
        assert described.device == listed.devices[0]

    play(scenario)


def test_an_unknown_device_is_not_found_and_the_way_to_the_list_is_shown(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        stub = await cloud.stub()
        request = fleet_pb2.DescribeDeviceRequest(fleet="reef", device_id="pi-9")
        error = await refusal(stub.DescribeDevice(request))
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert "`shoal devices ls`" in error.details

    play(scenario)


def test_policies_are_listed_newest_first_with_age_and_who_runs_them(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        published = [cloud.publish() for _ in range(3)]
        stub = await cloud.stub()
        answer = await stub.ListPolicies(fleet_pb2.ListPoliciesRequest(fleet="reef"))
        assert [info.version for info in answer.policies] == [3, 2, 1]
        assert [info.devices_active for info in answer.policies] == [0, 1, 1]
        newest = answer.policies[0]
        assert newest.digest == published[2].digest
        assert newest.graph_digest == published[2].manifest.graph_digest
        assert newest.bundle_bytes == len(published[2].bundle)
        assert (newest.updates, newest.precision, newest.reason) == (16, "int8", "resume")
        assert newest.age_s == 60.0
        assert [list(info.active_devices) for info in answer.policies] == [[], ["pi-1"], ["pi-2"]]
        measured = [info.HasField("kl_staleness") for info in answer.policies]
        assert (measured, answer.policies[1].kl_staleness) == ([False, True, False], 0.125)
        assert newest.tensors_bytes == published[2].manifest.tensors_bytes
        assert newest.fp32_bytes == published[2].fp32_bytes == 4 * 8

    play(scenario)


def test_what_a_device_reports_as_active_counts_at_once_if_it_is_of_its_present_run(
    play: Play,
) -> None:
    async def scenario(cloud: Cloud) -> None:
        published = [cloud.publish() for _ in range(3)]
        run_id = cloud.view.devices()[0].status.run_id
        stub = parameter_server_pb2_grpc.ParameterServerStub(
            await cloud.channel("pi-1", Role.DEVICE)
        )
        fleet = await cloud.stub()
        for reported, expected in ((b"of another run", [[], ["pi-1"], ["pi-2"]]), (run_id, None)):
            await stub.ReportActive(
                server_pb2.ReportActiveRequest(
                    fleet="reef",
                    device_id="pi-1",
                    run_id=reported,
                    version=3,
                    digest=published[2].digest,
                )
            )
            answer = await fleet.ListPolicies(fleet_pb2.ListPoliciesRequest(fleet="reef"))
            active = [list(info.active_devices) for info in answer.policies]
            assert active == (expected or [["pi-1"], [], ["pi-2"]])
        listed = await fleet.ListDevices(fleet_pb2.ListDevicesRequest(fleet="reef"))
        assert [
            (each.active_version, each.telemetry.active_version, each.active_digest)
            for each in listed.devices
        ] == [(3, 2, published[2].digest), (1, 1, b"")]

    play(scenario)


def test_the_audit_is_the_views(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        for name, role in (("operator", Role.OPERATOR), ("learner", Role.LEARNER)):
            stub = await cloud.stub(name, role)
            assert await stub.Audit(fleet_pb2.AuditRequest(fleet="reef")) == cloud.view.audit()

    play(scenario)


def test_training_comes_whole_each_time_with_the_bytes_sent(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        stub = await cloud.stub()
        request = fleet_pb2.WatchTrainingRequest(fleet="reef", interval_ms=1)
        stream = stub.WatchTraining(request, timeout=DEADLINE_S)
        states = [await stream.read() for _ in range(3)]
        assert [state.env_steps for state in states] == [1, 2, 3]
        assert states[-1].bytes_down == cloud.server.total_traffic().bytes_down

    play(scenario)


def test_only_an_operator_or_the_learner_reads_the_fleet(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        for name, role in (("pi-1", Role.DEVICE), ("broker", Role.BROKER)):
            stub = await cloud.stub(name, role)
            describe = fleet_pb2.DescribeDeviceRequest(fleet="reef", device_id="pi-1")
            calls = (
                stub.ListDevices(fleet_pb2.ListDevicesRequest(fleet="reef")),
                stub.DescribeDevice(describe),
                stub.ListPolicies(fleet_pb2.ListPoliciesRequest(fleet="reef")),
                stub.Audit(fleet_pb2.AuditRequest(fleet="reef")),
                stub.WatchTraining(fleet_pb2.WatchTrainingRequest(fleet="reef")).read(),
            )
            for call in calls:
                error = await refusal(call)
                assert error.code is grpc.StatusCode.PERMISSION_DENIED
                assert f"the certificate is of {name!r}" in error.details
        assert cloud.view.looks == 0

    play(scenario)


def test_another_fleet_is_told_whose_server_this_is(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        stub = await cloud.stub()
        error = await refusal(stub.Audit(fleet_pb2.AuditRequest(fleet="atoll")))
        assert error.code is grpc.StatusCode.FAILED_PRECONDITION

    play(scenario)


def test_views_are_limited_and_one_that_closes_makes_room(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        # More connections than one, since each carries only so many streams.
        stubs = [await cloud.stub() for _ in range(3)]
        request = fleet_pb2.WatchTrainingRequest(fleet="reef", interval_ms=60_000)
        views = [
            stubs[number % len(stubs)].WatchTraining(request, timeout=DEADLINE_S)
            for number in range(MAX_TRAINING_WATCHES)
        ]
        for view in views:
            await view.read()
        error = await refusal(stubs[0].WatchTraining(request, timeout=DEADLINE_S).read())
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        views[0].cancel()
        await eventually(lambda: cloud.service.training_watches < MAX_TRAINING_WATCHES)
        assert await stubs[0].WatchTraining(request, timeout=DEADLINE_S).read()

    play(scenario)


def test_a_stopping_learner_ends_the_views(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        stub = await cloud.stub()
        request = fleet_pb2.WatchTrainingRequest(fleet="reef", interval_ms=60_000)
        stream = stub.WatchTraining(request, timeout=DEADLINE_S)
        await stream.read()
        cloud.service.stop_streams()
        error = await refusal(stream.read())
        assert error.code is grpc.StatusCode.UNAVAILABLE

    play(scenario)
