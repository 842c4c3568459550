"""A bundle over real gRPC to a device, whose launcher is played by the test."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from bundles import CONTENTS, PUBLIC, write_bundle
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rollout_cloud import DEADLINE_S, FLEET, PLAN_PB, Cloud, Devices, rollout_cloud
from sim import on_loop, until
from strategies import RUN_ID

from cloud_learner.rollout.bundles import StoredBundle
from cloud_learner.rollout.messages import plan_of
from cloud_learner.rollout.rollout import Progress, Rollout, State
from edge_agent.config import ServerConfig
from edge_agent.downlink.downlink import Refusal
from edge_agent.events import Events
from edge_agent.policies.policy import Policy
from edge_agent.slots import codec, transitions
from edge_agent.slots.state import Content, Moment, Name, Release, Slot
from edge_agent.slots.state import State as SlotState
from edge_agent.updates.acted import Acted
from edge_agent.updates.agent_step import AgentAsked
from edge_agent.updates.update_files import UpdateFiles
from edge_agent.updates.updates import Updates
from shoal.errors import BundleRefused, ConfigError, RolloutError
from shoal.v1 import rollout_pb2 as pb

VERSION = "0.2.0-1"
NOW = Moment(0, "boot")
LARGE = {**CONTENTS, "wheels/large-1.0-py3-none-any.whl": random.Random(0).randbytes(3_000_000)}


def agent_plan(*, wave: pb.RolloutWave | None = None) -> pb.RolloutPlan:
    plan = pb.RolloutPlan()
    plan.CopyFrom(PLAN_PB)
    plan.kind, plan.version = pb.ROLLOUT_KIND_AGENT, VERSION
    if wave is not None:
        plan.ClearField("waves")
        plan.waves.append(wave)
    return plan


class NoPolicies:
    """A device that has no policy: its agent is what is rolled out."""

    def __init__(self) -> None:
        self.current: Policy | None = None
        self.rejections: Counter[str] = Counter()
        self.refusal: Refusal | None = None

    def listening(self, changed: Callable[[], object]) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass
class Device:
    """A device with two slots, and the launcher's hand in the test's."""

    directory: Path
    updates: Updates
    events: Events

    @property
    def slots(self) -> Path:
        return self.directory / "slots.json"

    @property
    def request(self) -> Path:
        return self.directory / "updates" / "request.json"

    def put(self, state: SlotState) -> None:
        temporary = self.directory / "slots.tmp"
        temporary.write_bytes(codec.encode(state))
        temporary.replace(self.slots)

    def state(self) -> SlotState:
        return codec.decode(self.slots.read_bytes())

    def install(self) -> SlotState:
        """What the launcher does with a request."""
        request = json.loads(self.request.read_text())
        assert (self.directory / "updates" / request["bundle"] / "manifest.json").is_file()
        release = Release(request["digest"], VERSION, "0.2.0")
        state = self.state()
        fresh = state.put(state.spare, Slot(Content.INSTALLED, release))
        self.put(transitions.switch(fresh, request["reason"], NOW))
        self.request.unlink()
        return self.state()

    def told(self) -> list[str]:
        return [event.name for event in self.events.take()]


@asynccontextmanager
async def device(cloud: Cloud, directory: Path, name: str = "pi-1") -> AsyncIterator[Device]:
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240 - a test has time
    events = Events(name, RUN_ID, clock=lambda: 0.0)
    policies = NoPolicies()
    updates = Updates(
        ServerConfig("localhost", cloud.port, backoff_cap_s=0.05),
        cloud.identity(name),
        events,
        policies,
        policies,
        Acted(),
        UpdateFiles(directory / "updates", slots=directory / "slots.json"),
        fleet=FLEET,
        public_key=PUBLIC,
        run_id=RUN_ID,
    )
    found = Device(directory, updates, events)
    if not found.slots.exists():
        old = Release("0" * 64, "0.1.0-1", "0.1.0")
        found.put(SlotState(current=Name.A, a=Slot(Content.COMMITTED, old, "it acted")))
    services = (updates.follow, updates.report, updates.agent.serve)
    running = [asyncio.ensure_future(each()) for each in services]
    try:
        yield found
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@asynccontextmanager
async def fleet_of_one(tmp_path: Path) -> AsyncIterator[Cloud]:
    devices = Devices()
    devices.add("pi-1")
    async with rollout_cloud(tmp_path, devices=devices) as cloud:
        yield cloud


async def add(cloud: Cloud, path: Path, *, name: str = "operator") -> pb.AgentBundle:
    """Sends a bundle as the operator's command does."""

    def parts() -> Iterator[pb.AddBundlePart]:
        data = path.read_bytes()
        for offset in range(0, len(data), 40_000):
            piece = pb.BundlePart(offset=offset, data=data[offset : offset + 40_000])
            yield pb.AddBundlePart(fleet=FLEET, part=piece)

    async with cloud.stub(name) as stub:
        added = await stub.AddBundle(parts(), timeout=DEADLINE_S)
    assert isinstance(added, pb.AgentBundle)
    return added


def rollout_of(cloud: Cloud) -> Rollout:
    rollout = cloud.rollouts.find(0)
    assert rollout is not None
    return rollout


def progress(cloud: Cloud) -> Progress:
    return rollout_of(cloud).members["pi-1"].progress


@on_loop
async def test_a_bundle_is_fetched_proven_and_asked_for_and_promoted_once_its_slot_acted(
    tmp_path: Path,
) -> None:
    manifest = write_bundle(tmp_path / "new.tar", arch="x86_64", version=VERSION)
    async with fleet_of_one(tmp_path) as cloud, device(cloud, tmp_path / "pi") as pi:
        added = await add(cloud, tmp_path / "new.tar")
        assert (added.version, added.digest.hex()) == (VERSION, manifest.digest)
        await cloud.rollouts.start(plan_of(agent_plan()))
        await until(pi.request.exists)
        request = json.loads(pi.request.read_text())
        assert request == {
            "schema": 1,
            "bundle": manifest.digest,
            "digest": manifest.digest,
            "reason": "rollout 1, wave 1 of 2",
        }
        await until(lambda: progress(cloud) is Progress.STARTED)
        trial = pi.install()
        await until(lambda: "on trial" in rollout_of(cloud).members["pi-1"].reason)
        assert rollout_of(cloud).state is State.ACTIVE  # installed and started is no success
        assert trial.trial is not None
        pi.put(transitions.commit(trial, trial.trial.number, "it acted 3 episodes", NOW))
        await until(lambda: rollout_of(cloud).state is State.PROMOTED)
        assert rollout_of(cloud).members["pi-1"].reason == "it acted 3 episodes"
        await until(lambda: not (pi.directory / "updates" / manifest.digest).exists())


@on_loop
async def test_a_slot_that_rolled_back_aborts_the_rollout_with_the_launcher_s_reason(
    tmp_path: Path,
) -> None:
    write_bundle(tmp_path / "new.tar", arch="x86_64", version=VERSION)
    async with fleet_of_one(tmp_path) as cloud:
        await add(cloud, tmp_path / "new.tar")
        async with device(cloud, tmp_path / "pi") as pi:
            await cloud.rollouts.start(plan_of(agent_plan()))
            await until(pi.request.exists)
            trial = pi.install()
        # The new agent dies at once, and never says anything; the old one is back.
        pi.put(transitions.roll_back(trial, "it died 3 times in one boot", NOW))
        async with device(cloud, tmp_path / "pi"):
            await until(lambda: rollout_of(cloud).state is State.ABORTED)
        assert "pi-1: rolled back: it died 3 times in one boot" in rollout_of(cloud).reason


@on_loop
async def test_an_aborted_bundle_is_left_by_a_request_that_names_it(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path / "new.tar", arch="x86_64", version=VERSION)
    async with fleet_of_one(tmp_path) as cloud, device(cloud, tmp_path / "pi") as pi:
        await add(cloud, tmp_path / "new.tar")
        await cloud.rollouts.start(plan_of(agent_plan()))
        await until(pi.request.exists)
        pi.install()
        await cloud.rollouts.enter(0, State.ABORTED, "it limps")
        await until(pi.request.exists)
        request = json.loads(pi.request.read_text())
        assert (request["digest"], request["rollback"]) == (manifest.digest, True)
        assert "it limps" in request["reason"]
        assert progress(cloud) is Progress.STARTED
        pi.request.unlink()
        pi.put(transitions.roll_back(pi.state(), request["reason"], NOW))
        await until(lambda: progress(cloud) is Progress.LEFT)
        assert "it limps" in rollout_of(cloud).members["pi-1"].reason


@on_loop
async def test_a_download_that_broke_off_goes_on_where_it_was_and_nothing_is_failed_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloud 503 makes the local health check fail (balena-supervisor#1600)."""
    write_bundle(tmp_path / "new.tar", LARGE, arch="x86_64", version=VERSION)
    offsets: list[int] = []
    async with fleet_of_one(tmp_path) as cloud:
        await add(cloud, tmp_path / "new.tar")
        whole = cloud.bundles.read

        def breaking(bundle: StoredBundle, offset: int) -> Iterator[bytes]:
            offsets.append(offset)
            pieces = whole(bundle, offset)
            yield next(pieces)
            if len(offsets) < 4:
                raise RolloutError("the disk is slow today")
            yield from pieces

        monkeypatch.setattr(cloud.bundles, "read", breaking)
        async with device(cloud, tmp_path / "pi") as pi:
            await cloud.rollouts.start(plan_of(agent_plan()))
            await until(pi.request.exists)
            assert offsets == sorted(set(offsets))
            assert len(offsets) == 4
            assert pi.told() == []
            assert progress(cloud) is Progress.STARTED


@on_loop
async def test_a_bundle_that_was_tampered_with_is_refused_counted_and_told(tmp_path: Path) -> None:
    write_bundle(tmp_path / "new.tar", LARGE, arch="x86_64", version=VERSION)
    async with fleet_of_one(tmp_path) as cloud:
        await add(cloud, tmp_path / "new.tar")
        (path,) = (tmp_path / "bundles").iterdir()
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        async with device(cloud, tmp_path / "pi") as pi:
            await cloud.rollouts.start(plan_of(agent_plan()))
            await until(lambda: rollout_of(cloud).state is State.ABORTED)
            assert pi.told() == ["bundle_refused"]
            assert pi.updates.agent.refused == 1
            assert not pi.request.exists()
            assert not list((pi.directory / "updates").glob("*.part"))
        assert "is not what was announced" in rollout_of(cloud).reason


@on_loop
async def test_a_bundle_signed_by_another_never_gets_to_the_learner_s_shelf(
    tmp_path: Path,
) -> None:
    async with fleet_of_one(tmp_path) as cloud:
        path = tmp_path / "bad.tar"
        write_bundle(path, arch="x86_64", version=VERSION, fleet="pond")
        with pytest.raises(grpc.aio.AioRpcError, match="fleet 'pond'"):
            await add(cloud, path)
        other = Ed25519PrivateKey.generate()
        write_bundle(path, arch="x86_64", version=VERSION, key=other)
        with pytest.raises(grpc.aio.AioRpcError, match="not signed by this fleet"):
            await add(cloud, path)
        write_bundle(tmp_path / "ok.tar", arch="x86_64", version=VERSION)
        with pytest.raises(grpc.aio.AioRpcError, match="only an operator"):
            await add(cloud, tmp_path / "ok.tar", name="pi-1")
        assert cloud.counters["bundles_refused"] == 2
        assert not cloud.bundles.all
        assert not list((tmp_path / "bundles").iterdir())


@on_loop
async def test_devices_of_another_machine_are_not_asked_and_a_missing_bundle_is_said(
    tmp_path: Path,
) -> None:
    write_bundle(tmp_path / "new.tar", arch="x86_64", version=VERSION)
    async with fleet_of_one(tmp_path) as cloud:
        with pytest.raises(ConfigError, match="shoal rollout bundles add"):
            await cloud.rollouts.start(plan_of(agent_plan()))
        await add(cloud, tmp_path / "new.tar")
        cloud.devices.add("pi-2", machine="aarch64")
        whole = pb.RolloutWave(share=1.0)
        rollout = await cloud.rollouts.start(plan_of(agent_plan(wave=whole)))
        assert set(rollout.members) == {"pi-1"}


@on_loop
async def test_bundles_are_there_after_a_restart_and_one_version_means_one_bundle(
    tmp_path: Path,
) -> None:
    write_bundle(tmp_path / "new.tar", arch="x86_64", version=VERSION)
    write_bundle(tmp_path / "other.tar", LARGE, arch="x86_64", version=VERSION)
    async with fleet_of_one(tmp_path) as cloud:
        added = await add(cloud, tmp_path / "new.tar")
        assert await add(cloud, tmp_path / "new.tar") == added
        with pytest.raises(grpc.aio.AioRpcError, match="under a version of its own"):
            await add(cloud, tmp_path / "other.tar")
    (tmp_path / "bundles" / "incoming.tmp").write_bytes(b"half")
    async with fleet_of_one(tmp_path) as cloud:
        (again,) = cloud.bundles.all
        assert (again.digest, again.bundle_digest) == (added.digest, added.bundle_digest)


@on_loop
async def test_an_agent_without_slots_says_so_and_is_left_alone(tmp_path: Path) -> None:
    write_bundle(tmp_path / "new.tar", arch="x86_64", version=VERSION)
    async with fleet_of_one(tmp_path) as cloud, device(cloud, tmp_path / "pi") as pi:
        pi.updates.agent._files._slots = None
        await add(cloud, tmp_path / "new.tar")
        await cloud.rollouts.start(plan_of(agent_plan()))
        await until(lambda: rollout_of(cloud).state is State.ABORTED)
        assert "does not run from slots" in rollout_of(cloud).reason


def test_what_became_of_a_bundle_in_an_earlier_rollout_does_not_count_in_this_one(
    tmp_path: Path,
) -> None:
    files = UpdateFiles(tmp_path / "updates", slots=None)
    asked = AgentAsked(8, VERSION, bytes(32), 10, bytes(32))
    files.begin(asked)
    result = tmp_path / "updates" / "result.json"
    result.write_text(json.dumps({"digest": asked.name, "state": "failed", "reason": "full"}))
    files.begin(asked)
    assert files.look(asked, problem="").result is not None
    files.begin(AgentAsked(9, VERSION, bytes(32), 10, bytes(32)))
    assert files.look(asked, problem="").result is None


def test_a_part_of_another_bundle_is_removed_when_one_is_asked_for(tmp_path: Path) -> None:
    files = UpdateFiles(tmp_path / "updates", slots=None)
    first = AgentAsked(8, VERSION, bytes(32), 10, bytes(32))
    files.begin(first)
    files.part(first).write_bytes(b"half")
    files.begin(AgentAsked(9, VERSION, b"\1" * 32, 10, bytes(32)))
    assert not files.part(first).exists()


def test_a_bundle_for_which_there_is_no_room_is_refused_before_it_is_fetched(
    tmp_path: Path,
) -> None:
    files = UpdateFiles(tmp_path / "updates", slots=None)
    asked = AgentAsked(8, VERSION, bytes(32), 1 << 60, bytes(32))
    files.begin(asked)
    assert "free some" in files.lacks_room(asked)
    files.part(asked).write_bytes(b"not it")
    with pytest.raises(BundleRefused):
        files.unpack(asked, PUBLIC)
    assert not files.part(asked).exists()
