"""Bundles of agents through a relay: fetched once, proven, and only where there is room."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from brokers import free_port
from bundles import CONTENTS, write_bundle
from relay_site import FLEET, calling, relay_site
from rollout_cloud import Cloud, rollout_cloud
from sim import on_loop

from cloud_learner.rollout.bundles import PART_BYTES, SPARE_BYTES, Incoming, StoredBundle
from shoal.errors import RolloutError
from shoal.v1 import rollout_pb2 as pb
from shoal.v1.rollout_pb2_grpc import RolloutsStub


@dataclass
class Room:
    """What `shutil.disk_usage` says."""

    free: int


LARGE = {**CONTENTS, "wheels/large-1.0-py3-none-any.whl": random.Random(0).randbytes(1_500_000)}


def add_bundle(cloud: Cloud, tmp_path: Path) -> StoredBundle:
    write_bundle(tmp_path / "bundle.tar", LARGE, arch="x86_64")
    with cloud.bundles.receiving() as incoming:
        incoming.write((tmp_path / "bundle.tar").read_bytes())
        return cloud.bundles.keep(incoming)


async def fetched(channel: grpc.aio.Channel, digest: bytes, offset: int = 0) -> bytes:
    data = bytearray()
    request = pb.GetBundleRequest(fleet=FLEET, digest=digest, offset=offset)
    async for part in RolloutsStub(channel).GetBundle(request, wait_for_ready=True):
        assert part.offset == offset + len(data)
        data += part.data
    return bytes(data)


@on_loop
async def test_devices_of_a_site_get_a_bundle_that_came_upstream_once(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud, AsyncExitStack() as stack:
        bundle = add_bundle(cloud, tmp_path)
        whole = (tmp_path / "bundle.tar").read_bytes()
        served = []
        read = cloud.bundles.read

        def counted(*given: object) -> object:
            served.append(given)
            return read(*given)  # type: ignore[arg-type]

        cloud.bundles.read = counted  # type: ignore[assignment, method-assign]
        port = await stack.enter_async_context(relay_site(cloud.pki, cloud.port, tmp_path / "site"))
        names = [f"pi-{n}" for n in range(4)]
        channels = [
            await stack.enter_async_context(calling(cloud.pki, name, port)) for name in names
        ]
        got = await asyncio.gather(*(fetched(channel, bundle.digest) for channel in channels))
        assert got == [whole] * len(names)
        assert await fetched(channels[0], bundle.digest, 1_000_000) == whole[1_000_000:]
        assert len(served) == 1
        with pytest.raises(grpc.aio.AioRpcError, match="there is no bundle") as caught:
            await fetched(channels[0], bytes(32))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    async with (  # from its disk
        relay_site(cloud.pki, free_port(), tmp_path / "site") as port,
        calling(cloud.pki, "pi-1", port) as channel,
    ):
        assert await fetched(channel, bundle.digest) == whole


@on_loop
async def test_a_bundle_whose_way_upstream_breaks_goes_on_where_it_was(tmp_path: Path) -> None:
    async with (
        rollout_cloud(tmp_path) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        calling(cloud.pki, "pi-1", port) as channel,
    ):
        bundle, offsets = add_bundle(cloud, tmp_path), []
        read = cloud.bundles.read

        def breaks(bundle: StoredBundle, offset: int) -> Iterator[bytes]:
            offsets.append(offset)
            pieces = read(bundle, offset)
            yield next(pieces)
            if len(offsets) == 1:
                raise RolloutError("the line broke")
            yield from pieces

        cloud.bundles.read = breaks  # type: ignore[method-assign]
        assert await fetched(channel, bundle.digest) == (tmp_path / "bundle.tar").read_bytes()
        assert offsets == [0, PART_BYTES]


@on_loop
async def test_a_bundle_that_is_not_the_fleets_reaches_no_device(tmp_path: Path) -> None:
    async with (
        rollout_cloud(tmp_path) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        calling(cloud.pki, "pi-1", port) as channel,
    ):
        bundle, read = add_bundle(cloud, tmp_path), cloud.bundles.read

        def lies(bundle: StoredBundle, offset: int) -> Iterator[bytes]:
            return (piece[:-1] + bytes([piece[-1] ^ 1]) for piece in read(bundle, offset))

        cloud.bundles.read = lies  # type: ignore[method-assign]
        with pytest.raises(grpc.aio.AioRpcError, match="this relay cannot serve it now"):
            await fetched(channel, bundle.digest)
        assert not list((tmp_path / "site" / "bundles").iterdir())


@on_loop
async def test_a_bundle_that_does_not_fit_on_a_relays_disk_is_not_begun(tmp_path: Path) -> None:
    async with (
        rollout_cloud(tmp_path) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        calling(cloud.pki, "pi-1", port) as channel,
    ):
        bundle, bundles = add_bundle(cloud, tmp_path), tmp_path / "site" / "bundles"
        written: list[Path] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Incoming, "write", lambda self, _: written.append(self.path))
            patch.setattr(shutil, "disk_usage", lambda _: Room(free=SPARE_BYTES + 1_000_000))
            with pytest.raises(grpc.aio.AioRpcError, match="does not fit") as e:
                await fetched(channel, bundle.digest)
        assert e.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"{bundles}" in (e.value.details() or "")
        assert not written
        assert not list(bundles.iterdir())
        # Once there is room the device that comes back gets it.
        assert await fetched(channel, bundle.digest) == (tmp_path / "bundle.tar").read_bytes()


@on_loop
async def test_nothing_stays_of_a_bundle_when_a_relays_disk_fills_up_meanwhile(
    tmp_path: Path,
) -> None:
    async with (
        rollout_cloud(tmp_path) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        calling(cloud.pki, "pi-1", port) as channel,
    ):
        bundle, write = add_bundle(cloud, tmp_path), Incoming.write

        def fills_up(incoming: Incoming, piece: bytes) -> None:
            if incoming.size:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(incoming, piece)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Incoming, "write", fills_up)
            with pytest.raises(grpc.aio.AioRpcError, match="No space left on device: check"):
                await fetched(channel, bundle.digest)
        assert not list((tmp_path / "site" / "bundles").iterdir())
        assert await fetched(channel, bundle.digest) == (tmp_path / "bundle.tar").read_bytes()


@on_loop
async def test_a_learner_without_room_for_a_bundle_says_so_to_whoever_adds_it(
    tmp_path: Path,
) -> None:
    write_bundle(tmp_path / "bundle.tar", LARGE, arch="x86_64")
    data = (tmp_path / "bundle.tar").read_bytes()
    piece = pb.BundlePart(total_bytes=len(data), data=data[:1000])
    async with rollout_cloud(tmp_path) as cloud, cloud.stub("operator") as stub:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _: Room(free=SPARE_BYTES + len(data) - 1))
            with pytest.raises(grpc.aio.AioRpcError, match=r"does not fit: .* free some"):
                await stub.AddBundle(iter([pb.AddBundlePart(fleet=FLEET, part=piece)]))
        assert not cloud.bundles.all
