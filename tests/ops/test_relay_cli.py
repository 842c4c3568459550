"""`shoal relay` as an operator runs it: a process between a real learner's server and devices."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from brokers import free_port
from child_process import Process
from relay_policies import FLEET, publish
from sim import on_loop

from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.signing import load_signing_key
from cloud_learner.serving.grpc_server import GrpcServer
from shoal.identity import Identity
from shoalctl.cli import run
from shoalctl.pki.pki import FleetPki, Role

HOST = "127.0.0.1"


class Site:
    """The files of a relay, and the keys of its fleet."""

    def __init__(self, path: Path) -> None:
        self.pki = FleetPki.create(path / "pki", FLEET)
        self.learner = Identity.load(self.pki.issue("learner", Role.LEARNER))
        self.upstream_port = free_port()
        assert run(["pki", "issue", "site-a", "--relay", "--dir", str(path / "pki")]) == 0
        self.device = Identity.load(self.pki.issue("pi-1", Role.DEVICE))
        self.config = path / "relay.toml"
        self.config.write_text(
            f'fleet = "{FLEET}"\nidentity = "pki/identities/site-a"\nstate_dir = "state"\n'
            f'[upstream]\nhost = "{HOST}"\nport = {self.upstream_port}\nbackoff_cap_s = 0.1\n'
            f"[server]\nport = 0\n",
            "utf-8",
        )
        self._log = path / "log"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[PolicyLog, ParameterServer]]:
        with PolicyLog(self._log, load_signing_key(self.learner), FLEET) as log:
            server = ParameterServer(log, fleet=FLEET)
            async with GrpcServer(HOST, self.upstream_port, self.learner, [server]):
                yield log, server


@contextmanager
def relaying(config: Path) -> Iterator[tuple[Process, int]]:
    arguments = ["-m", "shoalctl.cli", "relay", "run", "--config", str(config)]
    process = Process([sys.executable, *arguments])
    try:
        line = process.wait_for_line("grpc_listening")
        yield process, int(json.loads(line)["port"])
    finally:
        assert process.stop() == 0


async def fetched(site: Site, port: int) -> int:
    from cloud_learner.downlink.policy_client import fetch_policy

    kept = await asyncio.to_thread(fetch_policy, f"{HOST}:{port}", site.device, version=0)
    return kept.manifest.version


def newest(log: PolicyLog, server: ParameterServer) -> Published:
    published = publish(log)
    server.announce(published)
    return published


@on_loop
async def test_a_relay_process_serves_devices_through_the_death_of_both_sides(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    async with site.serving() as (log, server):
        first = newest(log, server)
        with relaying(site.config) as (process, port):
            await asyncio.to_thread(process.wait_for_line, "policy_accepted")
            assert await fetched(site, port) == first.version
    with relaying(site.config) as (process, port):  # nobody is upstream
        await asyncio.to_thread(process.wait_for_line, "upstream_lost")
        assert await fetched(site, port) == first.version
        async with site.serving() as (log, server):
            second = newest(log, server)
            await asyncio.to_thread(process.wait_for_line, "policy_accepted")
            assert await fetched(site, port) == second.version


def test_an_identity_of_a_device_is_refused_with_the_command_that_makes_a_relay_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path)
    own = str(site.device.directory)
    assert run(["relay", "check", "-c", str(site.config), "--identity", own]) != 0
    assert "FAULT    identity" in (said := capsys.readouterr().out)
    assert "`shoal pki issue pi-1 --relay --san HOST`" in said
    assert run(["relay", "run", "-c", str(site.config), "--identity", own]) != 0
    assert "--relay --san HOST" in capsys.readouterr().err


def test_check_says_what_is_wrong_and_exits_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path)
    assert run(["relay", "check", "--config", str(site.config)]) == 2
    said = capsys.readouterr().out
    assert "site-a" in said
    assert "no policy is here yet" in said
    assert "FAULT    upstream" in said
    assert "is `identity` of the same fleet?" in said
    assert "operator" not in said


@on_loop
async def test_check_proves_what_upstream_offers(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.serving() as (log, server):
        newest(log, server)
        command = [sys.executable, "-m", "shoalctl.cli", "relay", "check", "-c", str(site.config)]
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await child.communicate()
    assert child.returncode == 0
    assert b"offers policy 1, proven" in said


def test_a_relay_loads_no_torch() -> None:
    import subprocess

    code = (
        "import sys, cloud_learner.relay.app, cloud_learner.relay.check, shoalctl.relay_cli\n"
        "assert not {'torch', 'onnx', 'onnxruntime', 'gymnasium'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
