"""`shoal rollout` against a learner's service: what is printed, and the exit code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from bundles import PUBLIC, write_bundle
from rollout_cloud import Cloud, report, rollout_cloud
from sim import on_loop

from cloud_learner.serving.grpc_server import Context
from shoal.v1 import fleet_pb2, fleet_pb2_grpc
from shoal.v1 import rollout_pb2 as pb
from shoalctl.cli import run

Shoal = Callable[..., Awaitable[int]]


def of(cloud: Cloud) -> Shoal:
    """The operator's command, in a thread: the service is on this one."""
    directory = cloud.identity("operator").directory
    (directory / "policy.pub").write_text(PUBLIC.hex())
    view = ["--server", f"localhost:{cloud.port}", "--identity", str(directory)]

    async def shoal(*words: str) -> int:
        return await asyncio.to_thread(run, ["rollout", *words, *view])

    return shoal


@on_loop
async def test_a_rollout_is_shown_with_its_devices_and_why_it_is_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        shoal = of(cloud)
        assert await shoal("ls") == 0
        assert "no rollouts" in capsys.readouterr().out
        assert await shoal("status") == 1
        assert "shoal rollout ls" in capsys.readouterr().err
        start = ("start", "--policy", "v1", "--wave", "1,100%", "--reason", "it walks further")
        assert await shoal(*start, "--dry-run") == 0
        planned = capsys.readouterr().out
        assert cloud.rollouts.find(0) is None
        assert await shoal(*start) == 0
        shown = capsys.readouterr().out
        assert "rollout 1 of policy 1" in shown
        assert "active: it walks further" in shown
        assert shown.splitlines()[-1] == planned.splitlines()[-1]  # the same device
        assert await shoal(*start) == 4
        assert "shoal rollout abort 1" in capsys.readouterr().err

        rollout = cloud.rollouts.find(0)
        assert rollout is not None
        (canary,) = rollout.members
        await report(cloud, canary, pb.ROLLOUT_PROGRESS_FAILED, reason="its memory is full")
        assert await shoal("status", "1", "-o", "json") == 0
        (item,) = json.loads(capsys.readouterr().out)["items"]
        assert (item["state"], item["failed"], item["undo_version"]) == ("aborted", 1, 4)
        assert item["members"][0]["reason"] == "its memory is full"
        assert await shoal("status", "--watch") == 1
        watched = capsys.readouterr()
        assert "aborted" in watched.out
        assert "its memory is full" in watched.err
        assert await shoal("ls", "-o", "wide") == 0
        assert "its memory is full" in capsys.readouterr().out


@on_loop
async def test_pausing_and_aborting_need_a_rollout_that_goes_on_and_keep_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        shoal = of(cloud)
        assert await shoal("pause") == 4
        assert "no rollout in progress" in capsys.readouterr().err
        await shoal("start", "--policy", "1")
        assert await shoal("pause", "--dry-run") == 0
        assert await shoal("pause", "--reason", "a look") == 0
        assert "paused: a look" in capsys.readouterr().out
        assert await shoal("resume") == 0
        assert "active: asked for by operator" in capsys.readouterr().out
        assert await shoal("abort", "1", "--reason", "it limps") == 0
        assert "aborted: it limps" in capsys.readouterr().out
        assert await shoal("resume", "1") == 4
        assert "aborted already" in capsys.readouterr().err


class Policies(fleet_pb2_grpc.FleetServicer):
    """The part of the fleet's view that knows the policies."""

    def add_to(self, server: grpc.aio.Server) -> None:
        fleet_pb2_grpc.add_FleetServicer_to_server(self, server)

    def stop_streams(self) -> None:
        pass

    async def ListPolicies(  # noqa: N802 - the name in the proto
        self, request: fleet_pb2.ListPoliciesRequest, context: Context
    ) -> fleet_pb2.ListPoliciesResponse:
        policies = [fleet_pb2.PolicyInfo(version=version) for version in (2, 1)]
        return fleet_pb2.ListPoliciesResponse(policies=policies)


@on_loop
async def test_the_latest_policy_is_rolled_out_by_that_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with rollout_cloud(tmp_path, beside=[Policies()]) as cloud:
        assert await of(cloud)("start", "--policy", "latest") == 0
        assert "rollout 1 of policy 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "give one of --policy"),
        (("--policy", "1", "--agent", "0.2.0"), "give one of --policy"),
        (("--policy", "one"), "its number"),
        (("--policy", "9"), "kept are 1 to 2"),
        (("--policy", "1", "--wave", "10%"), "100%"),
        (("--policy", "1", "--wave-timeout", "10"), "10m"),
        (("--policy", "1", "--max-failures", "many"), "5%"),
        (("--agent", "0.2.0"), "shoal rollout bundles add"),
        (("--bundle", "/no/such/file"), "/no/such/file"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(
    words: tuple[str, ...], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @on_loop
    async def scenario() -> None:
        async with rollout_cloud(tmp_path) as cloud:
            code = await of(cloud)("start", *words)
            assert code == (1 if "--bundle" in words else 4)

    scenario()
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert problem in said


@on_loop
async def test_a_bundle_is_checked_before_it_is_sent_and_shown_once_it_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new.tar"
    manifest = write_bundle(path, arch="x86_64", version="0.2.0-1")
    async with rollout_cloud(tmp_path) as cloud:
        shoal = of(cloud)
        assert await shoal("bundles", "add", str(path), "--dry-run") == 0
        assert not cloud.bundles.all
        assert await shoal("bundles", "add", str(path)) == 0
        capsys.readouterr()
        assert await shoal("bundles", "ls", "-o", "json") == 0
        (item,) = json.loads(capsys.readouterr().out)["items"]
        assert (item["version"], item["digest"]) == ("0.2.0-1", manifest.digest)
        assert await shoal("start", "--agent", "0.2.0-1") == 0
        assert "rollout 1 of agent 0.2.0-1" in capsys.readouterr().out
        data = bytearray(path.read_bytes())
        data[2000] ^= 1
        path.write_bytes(data)
        assert await shoal("bundles", "add", str(path)) == 1
        assert str(path) in capsys.readouterr().err
