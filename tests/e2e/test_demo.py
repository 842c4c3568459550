"""The whole system on this machine, on both brokers, whatever is killed."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tomllib

import psutil
import pytest
from demo_process import demo

BROKERS = [
    "embedded",
    pytest.param(
        "mosquitto",
        marks=[
            pytest.mark.mosquitto,
            pytest.mark.skipif(
                not (shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")),
                reason="MOSQUITTO IS NOT INSTALLED: apt-get install mosquitto",
            ),
        ],
    ),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker", BROKERS)
def test_solves_cartpole_with_four_int8_devices_and_accounts_for_every_chunk(broker: str) -> None:
    with demo("--broker", broker, "--seed", "1", "--timeout-s", "200") as running:
        envelope = running.finish()
        assert running.process.returncode == 0
    assert envelope["schema"] == "shoal.v1.DemoResult"
    assert envelope["solved"] is True
    assert envelope["return_mean"] >= 475
    assert envelope["env_steps"] <= 250_000
    assert envelope["quantization"]["precision"] == "int8"
    assert envelope["audit"]["balanced"] is True
    assert envelope["audit"]["trained"] > 0
    assert len(envelope["devices"]) == 4
    for device in envelope["devices"]:
        digest = envelope["policy_digests"][str(device["active_version"])]
        assert device["active_digest"] == digest
        assert device["swaps"] > 1
    assert 0 < envelope["bytes"]["down"] < envelope["bytes"]["down_fp32_equivalent"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("broker", BROKERS)
def test_goes_on_and_solves_after_kill_9_of_agent_learner_and_broker_twice_each(
    broker: str,
) -> None:
    victims = ["device-1", "learner", "broker"] * 2
    with demo("--broker", broker, "--seed", "2", "--timeout-s", "300") as running:
        seen = running.wait_for("training")
        for victim in victims:
            running.kill(victim)
            seen = running.wait_for("training", since=len(running.lines))
        assert seen
        envelope = running.finish()
        assert running.process.returncode == 0
    assert envelope["restarts"] == {"device-1": 2, "learner": 2, "broker": 2}
    assert envelope["solved"] is True
    assert envelope["audit"]["balanced"] is True
    assert envelope["audit"]["produced"] >= envelope["audit"]["trained"] > 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_sums_up_and_leaves_no_process_and_no_port(
    number: signal.Signals,
) -> None:
    with demo("--timeout-s", "100") as running:
        running.wait_for("training")
        started = running.descendants()
        ports = {
            connection.laddr.port
            for process in started
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert len(started) >= 6
        assert len(ports) >= 2
        running.process.send_signal(number)
        envelope = running.finish(30)
        assert running.process.returncode == 130
        assert envelope["ended"] == "interrupted"
        assert envelope["audit"]["balanced"] is True
        assert envelope["env_steps"] > 0
        assert not any("Traceback" in line for line in running.lines)
        gone, alive = psutil.wait_procs(started, timeout=1)
        assert not alive, f"still running: {alive}"
        assert len(gone) == len(started)
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.timeout(180)
def test_an_operator_sees_a_running_fleet_and_a_device_does_not() -> None:
    with demo("--until-return", "501", "--timeout-s", "100") as running:
        running.wait_for("policy 3")
        learner = tomllib.loads((running.directory / "learner.toml").read_text())
        identities = running.directory / "pki" / "identities"
        server = f"{learner['server']['host']}:{learner['server']['port']}"

        def shoal(*words: str, identity: str = "operator") -> subprocess.CompletedProcess[str]:
            view = ("--server", server, "--identity", str(identities / identity))
            return subprocess.run(
                [sys.executable, "-m", "shoalctl.cli", *words, *view, "-o", "json"],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )

        devices = shoal("devices", "ls")
        assert devices.returncode == 0
        items = json.loads(devices.stdout)["items"]
        assert len(items) == 4
        policies = json.loads(shoal("policy", "ls").stdout)["items"]
        assert len(policies) >= 3
        (shown,) = json.loads(shoal("policy", "show", "v2").stdout)["items"]
        assert (shown["version"], shown["precision"]) == (2, "int8")
        # Of a version that a whole batch was made under, as most are.
        assert any(policy["kl_staleness"] is not None for policy in policies)
        assert shown["agreement"] > 0.5
        assert 0 < shown["tensors_bytes"] < shown["fp32_bytes"]
        missing = shoal("policy", "show", "100000")
        assert missing.returncode == 1
        assert "the nearest is v" in missing.stderr
        audit = shoal("fleet", "audit")
        assert audit.returncode == 0
        one = shoal("devices", "describe", "device-2")
        assert "device-2" in one.stdout
        assert shoal("devices", "describe", "device-9").returncode == 1
        refused = shoal("devices", "ls", identity="device-0")
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert list((running.directory / "learner").rglob("events.out.tfevents*"))
        for path in running.directory.rglob("*key*"):
            assert path.is_dir() or path.stat().st_mode & 0o077 == 0, path


@pytest.mark.timeout(120)
def test_a_demo_that_is_not_solved_in_time_says_so_and_exits_3() -> None:
    with demo("--until-return", "501", "--timeout-s", "6") as running:
        envelope = running.finish()
        assert running.process.returncode == 3
    assert envelope["solved"] is False
    assert "--timeout-s" in running.lines[-1]


@pytest.mark.timeout(120)
def test_a_demo_may_end_after_so_many_steps_solved_or_not() -> None:
    with demo("--stop-after-steps", "4000", "--timeout-s", "100") as running:
        envelope = running.finish()
        assert running.process.returncode == 0
    assert (envelope["solved"], envelope["ended"]) == (False, "steps")
    assert 4000 <= envelope["env_steps"] < 20_000
    assert envelope["audit"]["balanced"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--env", "CartPol-v1"), "CartPole-v1"),
        (("--set", "training.max_lags=1"), "max_lag"),
        (("--algorithm", "no_such_module:Mine"), "no_such_module"),
        (("--devices", "0"), "--devices"),
        (("--env", "no_such_module:Env"), "no_such_module"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(arguments: tuple[str, ...], words: str) -> None:
    with demo(*arguments) as running:
        assert running.process.wait(60) == 4
    assert len(running.lines) == 1
    assert words in running.lines[0]
