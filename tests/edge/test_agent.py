"""The agent as a whole: it acts whatever happens around it, and stops in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from brokers import WAIT_S, Broker, Process, free_port, identity, nats_broker
from mqtt_learner import DEVICE, asyncs, connected_learner
from policy_publisher import Publisher

from edge_agent.config import EnvConfig
from edge_agent.environments.env import make_env
from edge_agent.events import Events
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.spool.run_ledger import RunLedger
from edge_agent.spool.spool import Spool
from shoal.envelope import codec_of
from shoal.ranges import Ranges
from shoal.spaces import EnvSpec
from shoal.trajectory import decode_chunk
from shoal.v1 import device_pb2 as pb
from shoal.v1.trajectory_pb2 import CODEC_COLUMNS, CODEC_ZSTD
from shoal.wire import unframe
from shoalctl.pki.pki import FleetPki

FLEET = "demo"


@dataclass
class Installation:
    """A device's directory, its policy already on disk, and the fleet's keys."""

    directory: Path
    pki: FleetPki
    broker_port: int

    def arguments(self, command: str, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "shoalctl.cli", "agent", command),
            *("--config", str(self.directory / "agent.toml"), *more),
        ]

    def start(self, *more: str) -> Process:
        process = Process(self.arguments("run", *more))
        process.wait_for_line("policy_current")
        return process

    def ledger(self) -> tuple[RunLedger, ...]:
        events = Events(DEVICE, bytes(16), clock=lambda: 0.0)
        with Spool(
            self.directory / "state" / "spool.sqlite",
            max_bytes=2**26,
            run_id=bytes(16),
            events=events,
        ) as spool:
            return spool.ledger()[:-1]


def install(directory: Path, pki: FleetPki, port: int) -> Installation:
    who = identity(pki, DEVICE)
    with make_env(EnvConfig("CartPole-v1")) as envs:
        spec: EnvSpec = envs.spec
    assert pki._policy_key is not None
    publisher = Publisher(fleet=FLEET, spec=spec, key=pki._policy_key)
    published = publisher.publish(1)
    with PolicyStore(
        directory / "state" / "policies",
        fleet=FLEET,
        public_key=publisher.public_key,
        spec=spec,
    ) as policies:
        policies.offer(published.bundle, published.fetch)
    (directory / "agent.toml").write_text(f"""
fleet = "{FLEET}"
identity = "{who}"
state_dir = "state"
telemetry_interval_s = 0.05
[env]
id = "CartPole-v1"
num_envs = 2
[actor]
chunk_steps = 16
control_hz = 400.0
[broker]
port = {port}
[parameter_server]
port = {free_port()}
""")
    return Installation(directory, pki, port)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with nats_broker(tmp_path_factory.mktemp("broker"), devices=[DEVICE]) as running:
        yield running


@pytest.fixture
def installed(tmp_path: Path, broker: Broker) -> Installation:
    return install(tmp_path, broker.pki, broker.port)


def test_acts_and_spools_with_no_broker_no_learner_no_network(
    tmp_path: Path, broker: Broker
) -> None:
    lonely = install(tmp_path, broker.pki, free_port())
    agent = lonely.start()
    agent.wait_for_line("broker_lost")
    agent.wait_for_line("parameter_server_lost")
    path = lonely.directory / "state" / "spool.sqlite"
    with closing(sqlite3.connect(path)) as spool:
        while spool.execute("SELECT count(*) FROM chunks").fetchone()[0] < 5:
            assert not agent.ended
    assert agent.stop() == 0
    (run,) = lonely.ledger()
    assert run.produced > 0
    assert run.spooled == Ranges.upto(run.produced)


@asyncs
async def test_chunks_become_columns_once_the_learner_says_that_it_reads_them(
    broker: Broker, installed: Installation
) -> None:
    async with connected_learner(broker) as learner:
        agent = installed.start()
        birth = await learner.status(pb.DEVICE_STATE_ONLINE)
        envelope = await learner.chunk()
        assert codec_of(envelope.body) == CODEC_ZSTD
        learner.say(pb.Appetite(sent_seq=1, learner_run_id=birth.run_id, codecs=[CODEC_COLUMNS]))
        while codec_of(envelope.body) != CODEC_COLUMNS:
            learner.ack(birth.run_id, Ranges.upto(envelope.key.seq + 1))
            envelope = await learner.chunk()
        assert decode_chunk(envelope.body).envs == 2
        assert agent.stop() == 0


@asyncs
async def test_a_stop_in_order_reports_every_chunk_and_then_says_farewell(
    broker: Broker, installed: Installation
) -> None:
    async with connected_learner(broker) as learner:
        agent = installed.start()
        birth = await learner.status(pb.DEVICE_STATE_ONLINE)
        envelope = await learner.chunk()
        assert envelope.key.run_id == birth.run_id
        assert decode_chunk(envelope.body).envs == 2
        learner.ack(birth.run_id, Ranges.of([envelope.key.seq]))
        assert agent.stop() == 0
        last = pb.Telemetry()
        while (message := await learner.message()).kind != "status":
            if message.kind == "telemetry":
                last = unframe(pb.Telemetry, message.payload)
        farewell = unframe(pb.Status, message.payload)
        assert farewell.run_id == birth.run_id
        assert farewell.state == pb.DEVICE_STATE_OFFLINE_EXPECTED
        (run,) = installed.ledger()
        assert last.ledger[-1].produced == run.produced
        assert Ranges.from_pb(last.ledger[-1].spooled) == run.spooled
        assert last.active_version == 1
        assert last.env_steps >= run.produced * 32


@asyncs
async def test_a_killed_agent_is_declared_lost_and_its_chunks_come_with_the_next_run(
    broker: Broker, installed: Installation
) -> None:
    async with connected_learner(broker) as learner:
        agent = installed.start()
        first = await learner.status(pb.DEVICE_STATE_ONLINE)
        await learner.chunk()
        agent.signal(signal.SIGKILL)
        agent.wait()
        lost = await learner.status(pb.DEVICE_STATE_OFFLINE_LOST)
        assert lost.run_id == first.run_id
        agent = installed.start()
        second = await learner.status(pb.DEVICE_STATE_ONLINE)
        assert second.run_id != first.run_id
        envelope = await learner.chunk()
        assert (envelope.key.run_id, envelope.key.seq) == (first.run_id, 0)
        learner.ack(first.run_id, Ranges.upto(10_000))
        while (await learner.chunk()).key.run_id != second.run_id:
            pass
        assert agent.stop() == 0


def test_an_agent_that_lacks_what_gradients_need_says_so_before_anything_starts(
    installed: Installation,
) -> None:
    lacking = installed.directory / "lacking.py"
    lacking.write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    command = installed.arguments("run", "--mode", "gradients", "--update-interval", "50")
    command += ["--set", 'gradients.worker="lacking:make"']
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        env={**os.environ, "PYTHONPATH": str(installed.directory)},
    )
    assert done.returncode == 4
    assert "pip install 'shoal[train]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (installed.directory / "state" / "spool.sqlite").exists()


FAILING = """
import gymnasium
import numpy as np

class Arm(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, steps):
        self.steps = steps
    def reset(self, *, seed=None, options=None):
        if self.steps < 0:
            raise OSError("no motor answers")
        return np.zeros(4, np.float32), {}
    def step(self, action):
        self.steps -= 1
        if self.steps < 0:
            raise RuntimeError("motor jammed")
        return np.zeros(4, np.float32), 0.0, False, False, {}
"""


@pytest.mark.parametrize(
    ("steps", "said"),
    [(-1, "raised OSError in reset: no motor"), (0, "motor jammed"), (2000, "motor jammed")],
)
@asyncs
async def test_an_environment_that_fails_is_a_death_with_a_reason_however_early(
    broker: Broker, installed: Installation, steps: int, said: str
) -> None:
    (installed.directory / "failing.py").write_text(FAILING)
    flags = ["--env", "failing:Arm", "--set", f"env.kwargs.steps={steps}"]
    flags += ["--set", "actor.before_policy=safe_action", "--set", "actor.control_hz=1000.0"]
    async with connected_learner(broker) as learner:
        done = await asyncio.to_thread(
            subprocess.run,
            installed.arguments("run", *flags),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            cwd=installed.directory,
        )
        birth = await learner.status(pb.DEVICE_STATE_ONLINE)
        death = await learner.status(pb.DEVICE_STATE_OFFLINE_LOST)
        assert death.run_id == birth.run_id
        assert death.reason.startswith("failed: failing:Arm")
        assert said in death.reason
    assert done.returncode == 1, "the arguments were good"
    assert said in done.stderr.splitlines()[-1]


def test_an_environment_that_fails_with_no_broker_ends_the_agent_all_the_same(
    installed: Installation,
) -> None:
    (installed.directory / "failing.py").write_text(FAILING)
    flags = ["--env", "failing:Arm", "--set", "env.kwargs.steps=-1"]
    done = subprocess.run(
        installed.arguments("run", *flags, "--broker", f"127.0.0.1:{free_port()}"),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=installed.directory,
    )
    assert done.returncode == 1
    assert "no motor answers" in done.stderr


def test_a_second_agent_on_one_state_directory_is_told_so(installed: Installation) -> None:
    agent = installed.start()
    second = subprocess.run(
        installed.arguments("run"), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert second.returncode == 4
    assert "another agent uses" in second.stderr
    assert agent.stop() == 0


def test_a_check_says_what_is_there_and_what_is_not(installed: Installation) -> None:
    done = subprocess.run(
        installed.arguments("check", "-o", "json"),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    found = {item["name"]: item for item in json.loads(done.stdout)["items"]}
    assert {name for name, item in found.items() if not item["ok"]} == {"parameter_server"}
    assert done.returncode == found["parameter_server"]["exit_code"] == 2
    assert "Box" in found["environment"]["detail"]
    assert {item["level"] for item in found.values()} == {"ok", "fault"}


def test_a_check_beside_a_running_agent_does_not_take_its_spool_for_a_fault(
    installed: Installation,
) -> None:
    agent = installed.start()
    done = subprocess.run(
        installed.arguments("check"), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    (line,) = [line for line in done.stdout.splitlines() if " spool " in line]
    assert line.startswith("ok ")
    assert "in use by a running agent" in line
    assert agent.stop() == 0


@pytest.mark.parametrize(
    ("flags", "code", "complaint"),
    [
        (["--env", "CartPole-v9"], 4, "CartPole"),
        (
            ["--set", "actor.chunk_step=1"],
            4,
            "--set actor.chunk_step: unknown key actor.chunk_step; did you mean chunk_steps",
        ),
        (["--num-envs", "0"], 4, "--num-envs: env.num_envs is 0"),
        (["--server", "here:99999"], 4, "--server 'here:99999': a port is 1 to 65535"),
        (["--set", "nonsense"], 4, "KEY=VALUE"),
        (["--broker", "here"], 4, "HOST:PORT"),
        (["--identity", "/nowhere"], 4, "no such directory"),
    ],
)
def test_a_wrong_flag_is_one_line_and_its_exit_code(
    installed: Installation, flags: list[str], code: int, complaint: str
) -> None:
    done = subprocess.run(
        installed.arguments("run", *flags),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == code
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_an_agent_never_loads_torch_or_onnx() -> None:
    program = (
        "import sys, edge_agent.agent, edge_agent.checks.check, edge_agent.cli;"
        "print([name for name in ('torch', 'onnx', 'tensorboard') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
