"""The learning curve over a real gRPC server with mutual TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from sim import on_loop
from strategies import cartpole_spec

from cloud_learner.fleet.curve_service import CurveService
from cloud_learner.serving.grpc_server import GrpcServer
from cloud_learner.training.stats import TrainingStats
from shoal.episodes import Episode
from shoal.identity import Identity
from shoal.spaces import EnvSpec
from shoal.v1 import curve_pb2 as pb
from shoal.v1.curve_pb2_grpc import CurvesStub
from shoalctl.pki.pki import FleetPki, Role

SPEC = cartpole_spec()
ASKED = pb.GetCurveRequest(fleet="reef")


def episode(total: float) -> Episode:
    return Episode(0, 0, total, 9)


@asynccontextmanager
async def asked_by(directory: Path, role: Role, service: CurveService) -> AsyncIterator[CurvesStub]:
    pki = FleetPki.create(directory / "pki", "reef")
    learner = Identity.load(pki.issue("learner", Role.LEARNER))
    pems = Identity(
        pki.issue(role if role is Role.OPERATOR else "pi-1", role), "", None
    ).read_pems()
    keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    async with (
        GrpcServer("127.0.0.1", 0, learner, [service]) as server,
        grpc.aio.secure_channel(f"localhost:{server.port}", keys) as channel,
    ):
        yield CurvesStub(channel)


def service_of(stats: TrainingStats, spec: EnvSpec | None = SPEC) -> CurveService:
    return CurveService(stats, lambda: spec, "some.module:APPO", fleet="reef")


@on_loop
async def test_the_curve_goes_on_while_episodes_end(tmp_path: Path) -> None:
    stats = TrainingStats()
    service = service_of(stats)
    async with asked_by(tmp_path, Role.OPERATOR, service) as stub:
        assert not (await stub.GetCurve(ASKED)).points
        stats.note_experience(32, [episode(10.0)])
        service.sample()
        stats.note_experience(32, [])
        service.sample()  # nothing ended: nothing is new
        stats.note_experience(32, [episode(30.0)])
        told = await stub.GetCurve(ASKED)  # as of now, whenever it was looked at last
        assert [(p.env_steps, p.return_mean) for p in told.points] == [(32, 10.0), (96, 20.0)]
        assert (told.env_id, told.reward_threshold) == (SPEC.env_id, SPEC.reward_threshold)
        assert told.algorithm == "some.module:APPO"


@on_loop
async def test_a_learner_that_resumes_begins_where_it_was(tmp_path: Path) -> None:
    stats = TrainingStats()
    stats.note_experience(640, [])
    stats.restore_window((episode(5.0), episode(7.0)))
    stats._episodes = 2
    async with asked_by(tmp_path, Role.OPERATOR, service_of(stats, None)) as stub:
        told = await stub.GetCurve(ASKED)
    assert [(p.env_steps, p.return_mean) for p in told.points] == [(640, 6.0)]
    assert not told.env_id
    assert not told.HasField("reward_threshold")


@on_loop
async def test_devices_may_not_read_it(tmp_path: Path) -> None:
    async with asked_by(tmp_path, Role.DEVICE, service_of(TrainingStats())) as stub:
        with pytest.raises(grpc.aio.AioRpcError, match="only an operator's") as caught:
            await stub.GetCurve(ASKED)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
