from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from cloud_learner.downlink import refresh
from cloud_learner.downlink.parameter_server import (
    MAX_STUCK_WATCHES_PER_DEVICE,
    MAX_WATCHES_PER_DEVICE,
    ParameterServer,
)
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.policy_source import PolicySource
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.refresh import Offer
from cloud_learner.grpc_server import GrpcServer
from cloud_learner.uplink.traffic import Traffic
from shoal.identity import Identity
from shoal.policy import (
    MAX_BUNDLE_BYTES,
    PART_BYTES,
    Assembler,
    Golden,
    PayloadPart,
    decode_bundle,
    encode_bundle,
    sha256,
)
from shoal.policy_delta import Base, Content, decode_policy_delta
from shoal.tensors import Array
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoalctl.pki import FleetPki, Role

DEADLINE_S = 60.0
GRAPH = b"a weightless graph"
SMALL, LARGE = 64, 12 * PART_BYTES  # bytes of weights: one part, and far more than a window
PATIENCE_S = 0.05
# A transport that takes little on credit, so that a device that does not read blocks its sender.
NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536))


@dataclass(frozen=True)
class PolicyOfSize:
    tensors: dict[str, Array]
    golden: Golden
    precision: str = "int8"
    kl_quantization: float = 0.002
    agreement: float = 0.996


class Cloud:
    """A policy log and its parameter server behind real TLS, and devices to connect to it."""

    def __init__(
        self,
        pki: FleetPki,
        log: PolicyLog,
        server: ParameterServer,
        port: int,
        ahead: list[int],
    ) -> None:
        self.pki, self.log, self.server, self.port = pki, log, server, port
        self.ahead = ahead
        self.stack = AsyncExitStack()

    def step(self, size: int = LARGE) -> Published:
        """Publishes a policy that differs little from the one before."""
        return self.publish(size, np.random.default_rng(0).integers(-60, 60, size).astype(np.int8))

    def publish(self, size: int = SMALL, weight: NDArray[np.int8] | None = None) -> Published:
        golden = Golden(
            observations=np.zeros((1, 4), np.float32),
            noise=np.zeros((1, 2), np.float32),
            actions=np.array([1]),
            log_probs=np.array([-0.5], np.float32),
        )
        if weight is None:
            weight = np.full(size, self.log.highest_version % 100, np.int8)
        else:
            weight[: self.log.highest_version] += 1
        policy = PolicyOfSize({"weight.0": weight, "weight.0.scale": np.ones(4)}, golden)
        published = self.log.publish(policy, graph=GRAPH, updates=16, spec_fingerprint=bytes(32))
        self.server.announce(published)
        return published

    async def device(self, name: str, *, role: Role = Role.DEVICE) -> Device:
        pems = Identity(self.pki.issue(name, role), name, None).read_pems()
        keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        options = (*NARROW, ("grpc.use_local_subchannel_pool", 1))
        channel = grpc.aio.secure_channel(f"localhost:{self.port}", keys, options)
        await self.stack.enter_async_context(channel)
        return Device(name, rpc.ParameterServerStub(channel))


class Device:
    """The receiving end of one connection."""

    def __init__(self, name: str, stub: rpc.ParameterServerStub) -> None:
        self.name, self.stub = name, stub

    def watch(
        self,
        have: int = 0,
        *,
        digest: bytes = b"",
        fleet: str = "reef",
        name: str = "",
        deltas: bool = False,
        partial: tuple[bytes, int] = (b"", 0),
    ) -> Watch:
        request = pb.WatchRequest(
            fleet=fleet,
            device_id=name or self.name,
            have_version=have,
            have_digest=digest,
            accepts_delta=deltas,
            partial_digest=partial[0],
            partial_bytes=partial[1],
        )
        return Watch(self.stub.Watch(request, timeout=DEADLINE_S))

    async def report(
        self, version: int, digest: bytes, *, name: str = "", handled: int = 0
    ) -> None:
        """Says what acts."""
        request = pb.ReportActiveRequest(
            fleet="reef",
            device_id=name or self.name,
            run_id=bytes(16),
            version=version,
            digest=digest,
            handled_version=handled,
        )
        await self.stub.ReportActive(request, timeout=DEADLINE_S)

    def graph(self, digest: bytes, *, fleet: str = "reef") -> Watch:
        request = pb.GetGraphRequest(fleet=fleet, digest=digest)
        return Watch(self.stub.GetGraph(request, timeout=DEADLINE_S))

    def policy(self, version: int, *, fleet: str = "reef") -> Watch:
        request = pb.GetPolicyRequest(fleet=fleet, version=version)
        return Watch(self.stub.GetPolicy(request, timeout=DEADLINE_S))


@dataclass(frozen=True)
class Refusal:
    code: grpc.StatusCode
    details: str


class Watch:
    """A stream of parts, put together."""

    def __init__(self, call: grpc.aio.UnaryStreamCall[Any, pb.Part]) -> None:
        self.call = call
        self.version = 0
        self.kind = pb.PAYLOAD_KIND_UNSPECIFIED
        self.bytes = 0
        self.digest = b""
        self._assembler = Assembler(MAX_BUNDLE_BYTES)

    async def part(self) -> bytes | None:
        part = await self.call.read()
        assert isinstance(part, pb.Part), "the stream has ended"
        self.version, self.kind, self.digest = part.version, part.kind, part.digest
        self.bytes += len(part.data)
        return self._assembler.add(
            PayloadPart(part.total_bytes, part.offset, part.data, part.digest)
        )

    async def payload(self) -> bytes:
        while (payload := await self.part()) is None:
            pass
        return payload

    async def refusal(self) -> Refusal:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.payload()
        return Refusal(caught.value.code(), caught.value.details() or "")


Scenario = Callable[[Cloud], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    pki = FleetPki.create(tmp_path / "pki", "reef")
    identity = Identity(pki.issue("learner", Role.LEARNER), "learner", None)

    @asynccontextmanager
    async def cloud() -> AsyncIterator[Cloud]:
        with PolicyLog(tmp_path / "policies", Ed25519PrivateKey.generate(), "reef") as log:
            ahead: list[int] = []
            server = ParameterServer(
                log, fleet="reef", note_version=ahead.append, patience_s=PATIENCE_S
            )
            async with GrpcServer("127.0.0.1", 0, identity, [server]) as endpoint:
                there = Cloud(pki, log, server, endpoint.port, ahead)
                async with there.stack:
                    yield there
            await eventually(lambda: server.watchers == 0)

    async def perform(scenario: Scenario) -> None:
        async with asyncio.timeout(DEADLINE_S), cloud() as there:
            await scenario(there)

    return lambda scenario: asyncio.run(perform(scenario))


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for lies behind a connection
        await asyncio.sleep(0)


def test_a_device_gets_the_newest_policy_and_then_each_newer_one(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        second = cloud.publish()
        watch = (await cloud.device("pi-1")).watch()
        assert (await watch.payload(), watch.version) == (second.bundle, 2)
        third = cloud.publish()
        assert (await watch.payload(), watch.version) == (third.bundle, 3)

    play(scenario)


def test_a_device_may_wait_for_the_first_policy(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        watch = (await cloud.device("pi-1")).watch()
        await eventually(lambda: cloud.server.watchers == 1)
        first = cloud.publish()
        assert await watch.payload() == first.bundle

    play(scenario)


def test_a_large_policy_arrives_in_parts(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        large = cloud.publish(LARGE)
        watch = (await cloud.device("pi-1")).watch()
        assert await watch.payload() == large.bundle

    play(scenario)


def test_a_device_that_comes_back_gets_nothing_until_there_is_a_newer_one(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        device = await cloud.device("pi-1")
        for _ in range(3):
            watch = device.watch(have=1, digest=first.digest)
            await eventually(lambda: cloud.server.watchers == 1)
            watch.call.cancel()
            await eventually(lambda: cloud.server.watchers == 0)
        assert cloud.server.traffic("pi-1") == Traffic()
        watch = device.watch(have=1, digest=first.digest)
        await eventually(lambda: cloud.server.watchers == 1)
        second = cloud.publish()
        assert (await watch.payload(), watch.version) == (second.bundle, 2)

    play(scenario)


def test_what_a_device_missed_is_made_good_by_the_newest_alone(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        device = await cloud.device("pi-1")
        for _ in range(5):
            newest = cloud.publish()
        watch = device.watch(have=1, digest=first.digest)
        assert (await watch.payload(), watch.version) == (newest.bundle, 6)

    play(scenario)


def test_a_slow_device_delays_no_other_skips_versions_and_costs_no_memory(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish(LARGE)
        slow = (await cloud.device("pi-slow")).watch()
        assert await slow.part() is None  # has begun, and stops reading
        fast = (await cloud.device("pi-fast")).watch()
        assert await fast.payload() == first.bundle
        for _ in range(10):
            newest = cloud.publish(LARGE)
            assert await fast.payload() == newest.bundle
        assert cloud.server.traffic("pi-slow").refreshes == 0
        gc.collect()
        held = [thing for thing in gc.get_objects() if type(thing) is Offer]
        assert len(held) <= 2  # the one it is being sent, and the newest
        assert (await slow.payload(), slow.version) == (first.bundle, 1)
        assert (await slow.payload(), slow.version) == (newest.bundle, 11)

    play(scenario)


def test_a_hundred_devices_watch_at_once(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        devices = [await cloud.device(f"pi-{number}") for number in range(100)]
        watches = [device.watch() for device in devices]
        await asyncio.gather(*(watch.payload() for watch in watches))
        assert cloud.server.watchers == 100
        for _ in range(3):
            newest = cloud.publish()
            payloads = await asyncio.gather(*(watch.payload() for watch in watches))
            assert set(payloads) == {newest.bundle}
        await eventually(lambda: cloud.server.total_traffic().refreshes == 400)
        assert {cloud.server.traffic(device.name).refreshes for device in devices} == {4}

    play(scenario)


def test_a_certificate_watches_under_its_own_name_only(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        device = await cloud.device("pi-1")
        error = await device.watch(name="pi-2").refusal()
        assert error.code is grpc.StatusCode.PERMISSION_DENIED
        assert "the certificate is of 'pi-1', the call says 'pi-2'" in error.details
        for role in (Role.OPERATOR, Role.BROKER):
            other = await cloud.device(str(role), role=role)
            error = await other.watch().refusal()
            assert error.code is grpc.StatusCode.PERMISSION_DENIED
            assert "reserved" in error.details
        assert cloud.server.total_traffic() == Traffic()

    play(scenario)


def test_only_devices_operators_and_learners_read_policies(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        published = cloud.publish()
        operator = await cloud.device("operator", role=Role.OPERATOR)
        assert await operator.policy(1).payload() == published.bundle
        assert await operator.graph(sha256(GRAPH)).payload() == GRAPH
        broker = await cloud.device("broker", role=Role.BROKER)
        for call in (broker.policy(1), broker.graph(sha256(GRAPH))):
            assert (await call.refusal()).code is grpc.StatusCode.PERMISSION_DENIED

    play(scenario)


def test_another_fleet_is_told_whose_server_this_is(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        device = await cloud.device("pi-1")
        calls = (
            device.watch(fleet="atoll"),
            device.policy(1, fleet="atoll"),
            device.graph(sha256(GRAPH), fleet="atoll"),
        )
        for call in calls:
            error = await call.refusal()
            assert error.code is grpc.StatusCode.FAILED_PRECONDITION
            assert "of fleet 'reef', the call is for fleet 'atoll'" in error.details

    play(scenario)


def test_a_graph_is_found_by_its_digest(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        published = cloud.publish()
        device = await cloud.device("pi-1")
        assert await device.graph(published.manifest.graph_digest).payload() == GRAPH

    play(scenario)


def test_an_unknown_graph_is_not_found_and_the_right_one_is_named(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device("pi-1")
        error = await device.graph(bytes(32)).refusal()
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert "no policy is published yet" in error.details
        cloud.publish()
        error = await device.graph(bytes(32)).refusal()
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert f"version 1, uses {sha256(GRAPH).hex()}" in error.details
        for digest in (b"", b"../../etc/passwd", bytes(33)):
            error = await device.graph(digest).refusal()
            assert error.code is grpc.StatusCode.INVALID_ARGUMENT

    play(scenario)


def test_versions_are_fetched_by_number_and_zero_is_the_newest(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device("pi-1")
        error = await device.policy(0).refusal()
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert "none is published yet" in error.details
        first, second = cloud.publish(), cloud.publish()
        assert await device.policy(1).payload() == first.bundle
        assert await device.policy(0).payload() == second.bundle
        error = await device.policy(2**64 - 1).refusal()
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert "kept are 1 to 2" in error.details

    play(scenario)


def test_bytes_are_counted_by_device_beside_what_fp32_would_have_cost(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        one, two = await cloud.device("pi-1"), await cloud.device("pi-2")
        watches = (one.watch(), two.watch())
        for watch in watches:
            await watch.payload()
        second = cloud.publish()
        for watch in watches:
            await watch.payload()
        await one.graph(sha256(GRAPH)).payload()
        bundles = len(first.bundle) + len(second.bundle)
        mine = Traffic(bundles + len(GRAPH), bytes_down_fp32=2 * 4 * SMALL, refreshes=2)
        theirs = Traffic(bundles, bytes_down_fp32=2 * 4 * SMALL, refreshes=2)
        await eventually(lambda: cloud.server.traffic("pi-1") == mine)
        await eventually(lambda: cloud.server.traffic("pi-2") == theirs)
        assert cloud.server.traffic("pi-3") == Traffic()
        assert cloud.server.total_traffic() == Traffic(
            2 * bundles + len(GRAPH), bytes_down_fp32=4 * 4 * SMALL, refreshes=4
        )

    play(scenario)


def test_a_stopping_server_tells_every_device_to_come_back(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        watch = (await cloud.device("pi-1")).watch()
        await watch.payload()
        cloud.server.stop_streams()
        error = await watch.refusal()
        assert error.code is grpc.StatusCode.UNAVAILABLE
        assert "come back" in error.details

    play(scenario)


def test_a_device_that_leaves_watches_behind_keeps_its_newest(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        device, neighbour = await cloud.device("pi-1"), await cloud.device("pi-2")
        other = neighbour.watch()
        await other.payload()
        watches = []
        for _ in range(MAX_WATCHES_PER_DEVICE + 1):
            watches.append(device.watch())
            await watches[-1].payload()
        error = await watches[0].refusal()
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert cloud.server.watchers == MAX_WATCHES_PER_DEVICE + 1
        newest = cloud.publish()
        for watch in (*watches[1:], other):
            assert await watch.payload() == newest.bundle

    play(scenario)


def test_a_device_that_hoards_stuck_watches_is_refused_more(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish(LARGE)
        device = await cloud.device("pi-1")
        stuck = [device.watch() for _ in range(MAX_STUCK_WATCHES_PER_DEVICE)]
        for watch in stuck:
            assert await watch.part() is None  # has begun, and stops reading
        error = await device.watch().refusal()
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "16 watches open" in error.details
        assert await (await cloud.device("pi-2")).watch().payload()

    play(scenario)


def test_a_device_with_a_version_this_log_never_published_is_reported(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        device = await cloud.device("pi-1")
        for have, digest in ((1, first.digest), (1, bytes(32)), (99, bytes(32))):
            caplog.clear()
            watch = device.watch(have=have, digest=digest)
            await eventually(lambda: cloud.server.watchers == 1)
            reported = "device_diverged" in [record.getMessage() for record in caplog.records]
            assert reported == (digest != first.digest)
            watch.call.cancel()
            await eventually(lambda: cloud.server.watchers == 0)
        assert cloud.server.total_traffic() == Traffic()
        assert cloud.ahead == [99]

    with caplog.at_level(logging.WARNING, "shoal"):
        play(scenario)


def test_an_announcement_that_comes_late_is_ignored(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first, second = cloud.publish(), cloud.publish()
        cloud.server.announce(first)
        assert cloud.server.offered_version == 2
        watch = (await cloud.device("pi-1")).watch()
        assert await watch.payload() == second.bundle

    play(scenario)


def test_a_restarted_server_offers_what_the_log_holds(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()

    async def scenario() -> None:
        with PolicyLog(tmp_path, key, "reef") as log:
            before = Cloud(
                FleetPki.create(tmp_path / "pki", "reef"),
                log,
                ParameterServer(log, fleet="reef"),
                0,
                [],
            )
            before.publish()
            second = before.publish()
        with PolicyLog(tmp_path, key, "reef") as log:
            assert ParameterServer(log, fleet="reef").offered_version == 2
            newest = log.newest()
            assert newest is not None
            assert decode_bundle(newest.bundle) == decode_bundle(second.bundle)

    asyncio.run(scenario())


# -------------------------------------------------------------------------------------- deltas


def restored(payload: bytes, base: Published) -> bytes:
    """What a device makes of a delta."""
    return decode_policy_delta(payload).restore(Content.of(decode_bundle(base.bundle)))


def test_who_has_the_base_and_can_use_it_gets_what_changed_others_get_all(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        new, old, able = [await cloud.device(f"pi-{n}") for n in range(3)]
        watches = (
            new.watch(deltas=True),
            old.watch(1, digest=first.digest),
            able.watch(1, digest=first.digest, deltas=True),
        )
        await watches[0].payload()
        await eventually(lambda: cloud.server.watchers == 3)
        second = cloud.step()
        whole, delta = await watches[1].payload(), await watches[2].payload()
        assert (watches[1].kind, whole) == (pb.PAYLOAD_KIND_UNSPECIFIED, second.bundle)
        assert watches[2].kind == pb.PAYLOAD_KIND_DELTA
        assert restored(delta, first) == second.bundle
        assert len(delta) < len(whole) / 100
        assert cloud.server.traffic("pi-2").bytes_down == len(delta)

    play(scenario)


def test_the_next_delta_starts_from_what_a_device_says_that_it_acts_with(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        device = await cloud.device("pi-1")
        watch = device.watch(deltas=True)
        await watch.payload()
        await device.report(1, first.digest)
        second = cloud.step()
        assert restored(await watch.payload(), first) == second.bundle
        await device.report(2, second.digest)
        third = cloud.step()
        assert restored(await watch.payload(), second) == third.bundle
        active = cloud.server.active("pi-1")
        assert active is not None
        assert (active.base.version, active.run_id) == (2, bytes(16))

    play(scenario)


def test_a_device_that_never_reports_is_waited_for_but_not_for_ever(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        watch = (await cloud.device("pi-1")).watch(1, digest=first.digest, deltas=True)
        await eventually(lambda: cloud.server.watchers == 1)
        for _ in range(3):
            newest = cloud.step()
            assert restored(await watch.payload(), first) == newest.bundle

    play(scenario)


def test_a_report_that_comes_late_answers_nothing_and_a_refusal_does(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cloud: Cloud) -> None:
        monkeypatch.setattr(cloud.server, "_patience_s", DEADLINE_S)
        first = cloud.step()
        device = await cloud.device("pi-1")
        watch = device.watch(1, digest=first.digest, deltas=True)
        await eventually(lambda: cloud.server.watchers == 1)
        second = cloud.step()
        assert restored(await watch.payload(), first) == second.bundle
        third = cloud.step()
        await device.report(1, first.digest, handled=1)
        reading = asyncio.ensure_future(watch.payload())
        await device.graph(second.manifest.graph_digest).payload()  # time enough to be sent
        assert not reading.done()
        await device.report(1, first.digest, handled=2)  # it refused the second
        assert restored(await reading, first) == third.bundle

    play(scenario)


def test_a_base_that_is_unknown_or_of_another_log_gets_all(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        for version, digest in ((1, bytes(32)), (0, first.digest)):
            watch = (await cloud.device(f"pi-{version}")).watch(version, digest=digest, deltas=True)
            await eventually(lambda: cloud.server.watchers == 1)
            newest = cloud.step()
            while watch.version < newest.version:
                payload = await watch.payload()
            assert payload == newest.bundle
            watch.call.cancel()
            await eventually(lambda: cloud.server.watchers == 0)

    play(scenario)


def test_a_delta_that_saves_nothing_is_not_sent(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "encode_policy_delta", lambda delta: bytes(10_000))

    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        watch = (await cloud.device("pi-1")).watch(1, digest=first.digest, deltas=True)
        await eventually(lambda: cloud.server.watchers == 1)
        second = cloud.publish()
        assert await watch.payload() == second.bundle

    play(scenario)


def test_one_encoding_is_made_for_all_who_have_the_same_base(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = refresh._make

    def counted(published: Published, policies: PolicySource, base: Base) -> refresh.Refresh:
        made.append(published.version)
        return make(published, policies, base)

    monkeypatch.setattr(refresh, "_make", counted)

    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        devices = [await cloud.device(f"pi-{number}") for number in range(20)]
        watches = [each.watch(1, digest=first.digest, deltas=True) for each in devices]
        await eventually(lambda: cloud.server.watchers == 20)
        second = cloud.step()
        payloads = await asyncio.gather(*(watch.payload() for watch in watches))
        assert len(set(payloads)) == 1
        assert restored(payloads[0], first) == second.bundle
        assert made == [2]

    play(scenario)


def test_a_transfer_that_broke_off_goes_on_where_it_stopped(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish(LARGE)
        device = await cloud.device("pi-1")
        begun = device.watch()
        assert await begun.part() is None
        begun.call.cancel()
        for have in (PART_BYTES, PART_BYTES + 100, 7):
            rest = device.watch(partial=(begun.digest, have))
            read = bytearray(first.bundle[:have])
            while len(read) < len(first.bundle):
                part = await rest.call.read()
                assert isinstance(part, pb.Part)
                assert (part.offset, part.digest) == (len(read), sha256(first.bundle))
                read += part.data
            assert bytes(read) == first.bundle
            rest.call.cancel()
        second = cloud.publish(LARGE)  # what was begun is not what is sent any more
        assert await device.watch(partial=(begun.digest, PART_BYTES)).payload() == second.bundle
        for have in (0, len(second.bundle), 2**63):
            whole = device.watch(partial=(sha256(second.bundle), have))
            assert await whole.payload() == second.bundle

    play(scenario)


def test_reports_are_of_the_caller_itself_and_well_formed(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device("pi-1")
        for call, code in (
            (device.report(1, bytes(32), name="pi-2"), grpc.StatusCode.PERMISSION_DENIED),
            (device.report(1, b"short"), grpc.StatusCode.INVALID_ARGUMENT),
            (device.report(2**63, bytes(32)), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is code
        assert cloud.server.active("pi-2") is None

    play(scenario)


def test_weights_that_did_not_change_cost_less_than_a_kilobyte(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        weight = np.zeros(100_000, np.int8)
        first = cloud.publish(weight=weight.copy())
        watch = (await cloud.device("pi-1")).watch(1, digest=first.digest, deltas=True)
        await eventually(lambda: cloud.server.watchers == 1)
        bundle = decode_bundle(first.bundle)
        again = cloud.publish(weight=weight.copy() - (np.arange(100_000) < 1).astype(np.int8))
        assert decode_bundle(again.bundle).tensors == bundle.tensors
        assert len(await watch.payload()) < 1000
        assert encode_bundle(bundle) == first.bundle

    play(scenario)
