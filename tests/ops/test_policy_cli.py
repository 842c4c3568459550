"""`shoal policy diff|pin|unpin|snapshot` against a learner's services: output and exit code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from learner_core import CHUNKS, KEY, config_in, learning, take_in, until_newer
from learner_state import short_run
from sim import on_loop

from cloud_learner.core import Core
from cloud_learner.downlink.kept_policies import KeptPolicies
from cloud_learner.downlink.policy_service import PolicyService
from cloud_learner.fleet.event_log import Query
from cloud_learner.fleet.service import FleetService
from cloud_learner.serving.grpc_server import GrpcServer, Service
from cloud_learner.training.checkpoint import read_checkpoint
from cloud_learner.training.snapshots import Snapshots
from shoal.identity import Identity
from shoalctl.cli import run
from shoalctl.pki.pki import FleetPki, Role
from shoalctl.policies.difference import change_of, difference_of

Shoal = Callable[..., Awaitable[int]]


@dataclass
class Site:
    """A learner that trained a little, and its operator's commands."""

    core: Core
    shoal: Shoal
    device: Shoal
    directory: Path

    def events(self, name: str) -> list[str]:
        told = self.core.parts.fleet.log.newest(Query(kinds=frozenset({name})), limit=9)
        return [each.event.message for each in told]


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    pki = FleetPki.create(directory / "pki", "demo")
    server_identity = Identity.load(pki.issue("learner", Role.LEARNER))
    places = pki.issue("operator", Role.OPERATOR), pki.issue("pi-1", Role.DEVICE)
    for place in places:
        (place / "policy.pub").write_text(KEY.public_key().public_bytes_raw().hex())
    (directory / "state").mkdir()
    async with learning(config_in(directory / "state")) as core:
        parts = core.parts
        fleet_service = FleetService(
            parts.fleet,
            parts.policy_log,
            parts.parameter_server,
            fleet="demo",
            pinned=core.pins.versions,
        )
        policies = PolicyService(
            parts.policy_log.list,
            core.pins,
            Snapshots(directory / "state" / "snapshots", core.trainer.when_at_rest),
            parts.fleet,
            fleet="demo",
        )
        services: list[Service] = [parts.parameter_server, fleet_service, policies]
        async with GrpcServer("127.0.0.1", 0, server_identity, services) as server:

            def of(place: Path) -> Shoal:
                view = ["--server", f"localhost:{server.port}", "--identity", str(place)]

                async def shoal(*words: str) -> int:
                    return await asyncio.to_thread(run, ["policy", *words, *view])

                return shoal

            yield Site(core, of(places[0]), of(places[1]), directory)


@on_loop
async def test_a_version_is_pinned_shown_and_unpinned_and_the_fleet_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with site(tmp_path) as at:
        assert await at.shoal("pin", "v1", "--dry-run") == 0
        assert "v1 would be pinned; 1 of 64 pins are in use" in capsys.readouterr().out
        assert at.core.pins.versions() == frozenset()
        assert await at.shoal("pin", "latest", "--reason", "it walks") == 0
        assert "v1 is pinned; 1 of 64" in capsys.readouterr().out
        assert at.core.pins.versions() == {1}
        assert await at.shoal("pin", "1", "-o", "json") == 0
        envelope = json.loads(capsys.readouterr().out)
        assert envelope["schema"] == "shoal.v1.PolicyPin"
        assert envelope["items"][0]["changed"] is False
        assert at.events("policy_pinned") == ["v1 is pinned: it walks, by operator"]
        assert await at.shoal("ls") == 0
        header, row = capsys.readouterr().out.splitlines()[:2]
        assert "PINNED" in header
        assert " yes " in row
        assert await at.shoal("show", "v1") == 0
        assert "Pinned         until it is unpinned" in capsys.readouterr().out
        assert await at.shoal("unpin", "1") == 0
        assert "v1 is unpinned; 0 of 64" in capsys.readouterr().out
        assert at.events("policy_unpinned") == ["v1 is unpinned, by operator"]
        assert await at.shoal("pin", "99") == 1
        assert "no policy v99: v1 to v1 are kept" in capsys.readouterr().err
        assert await at.device("pin", "1") == 2
        assert "only an operator's" in capsys.readouterr().err
        assert at.core.pins.versions() == frozenset()


@on_loop
async def test_a_snapshot_lies_where_it_is_said_to_and_the_fleet_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with site(tmp_path) as at:
        assert await at.shoal("snapshot", "calm", "--dry-run") == 0
        assert "would write" in capsys.readouterr().out
        assert await at.shoal("snapshot", "calm", "-o", "json") == 0
        (item,) = json.loads(capsys.readouterr().out)["items"]
        path = tmp_path / "state" / "snapshots" / "calm.checkpoint"
        assert (item["path"], item["bytes"]) == (str(path), path.stat().st_size)
        assert read_checkpoint(path).learner["updates"] == item["updates"]
        assert at.events("snapshot_taken")[0].endswith("updates, by operator")
        assert await at.shoal("snapshot", "calm") == 4
        assert "give another name" in capsys.readouterr().err
        assert await at.shoal("snapshot", "../calm") == 4
        capsys.readouterr()
        assert await at.device("snapshot", "storm") == 2
        assert "only an operator's" in capsys.readouterr().err


@on_loop
async def test_two_versions_are_compared_by_integers_scales_and_decisions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with site(tmp_path) as at:
        take_in(at.core, range(CHUNKS))
        await until_newer(at.core, 3)
        newest = at.core.parts.policy_log.list()[0].manifest
        assert await at.shoal("diff", "v1", f"{newest.version}", "-o", "json") == 0
        envelope = json.loads(capsys.readouterr().out)
        assert envelope["schema"] == "shoal.v1.PolicyDifference"
        (item,) = envelope["items"]
        assert [each["version"] for each in item["versions"]] == [1, newest.version]
        assert item["same_graph"]
        assert not item["same_tensors"]
        assert 0 < item["delta_bytes"] < item["bundle_bytes"]
        assert 0.0 <= item["decisions"]["agreement"] <= 1.0
        assert item["decisions"]["kl"] > 0.0
        tensors = {each["name"]: each for each in item["tensors"]}
        assert tensors["weight.0"]["integers"]
        assert tensors["weight.0"]["changed"] > 0.0
        assert await at.shoal("diff", "1", f"v{newest.version}") == 0
        told = capsys.readouterr().out
        assert "as a delta" in told
        assert "units" in told
        assert "golden observations" in told
        assert await at.shoal("diff", "v1", "v1") == 0
        assert "tensors are the same" in capsys.readouterr().out
        assert await at.shoal("diff", "v1", "v999") == 1
        assert "no policy v999" in capsys.readouterr().err
        assert await at.shoal("diff", "one", "v1") == 4


@pytest.mark.parametrize("words", [("show", "-1"), ("pin", "-12"), ("diff", "v1", "-1")])
def test_a_negative_version_is_told_from_an_option(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", *words]) == 4
    assert "give its number, such as 7 or v7, or latest" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env_id", "training"),
    [
        ("CartPole-v1", {"training": 'algorithm = "cloud_learner.algorithms.dqn:DQN"'}),
        (
            "examples.cartpole_positions:CartPolePositions",
            {"training.network": 'kind = "lstm"\nhidden = [16]\nmemory = 8'},
        ),
        ("Pendulum-v1", {"training": "kl_quantization_max = 10.0"}),
    ],
)
def test_versions_with_values_memory_or_real_actions_are_compared_as_well(
    env_id: str, training: dict[str, str], tmp_path: Path
) -> None:
    made = short_run(tmp_path, env_id=env_id, training=training, chunks=1)
    policies = [KeptPolicies(made.state.policies).read(each.version) for each in made.published]
    graphs = {policy.manifest.graph_digest: policy.graph for policy in policies}
    first, second = made.published
    found = difference_of(first, second, graphs, made.brain.spec)
    assert found.same_graph
    assert found.decisions is not None
    assert found.decisions.kl > 0.0
    assert any(tensor.changed for tensor in found.tensors)
    same = difference_of(first, first, graphs, made.brain.spec)
    assert same.decisions is not None
    assert (same.decisions.agreement, same.decisions.kl) == (1.0, 0.0)
    assert not any(tensor.changed for tensor in same.tensors)
    assert difference_of(first, second, graphs, None).decisions is None


def test_a_change_is_told_in_the_tensors_own_units() -> None:
    integers = change_of("w", np.array([-60, 2], np.int8), np.array([60, 2], np.int8))
    assert (integers.changed, integers.largest, integers.integers) == (0.5, 120.0, True)
    scales = change_of("s", np.array(0.5, np.float32), np.array(0.25, np.float32))
    assert (scales.changed, scales.largest, scales.integers) == (1.0, 0.25, False)
    assert change_of("e", np.zeros(0), np.zeros(0)).changed == 0.0
