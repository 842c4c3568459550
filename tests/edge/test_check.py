"""`shoal agent check`: each fault is named once, and nothing is started or made."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from brokers import free_port, nats_broker
from brokers import identity as identity_of
from mqtt_learner import DEVICE

from edge_agent.checks.beside import check_beside
from edge_agent.checks.check import check
from edge_agent.checks.env_check import step_time
from edge_agent.checks.finding import Finding, Level, exit_code
from edge_agent.checks.trial import Trial
from edge_agent.config import ActorConfig, AgentConfig, BrokerConfig, EnvConfig, ServerConfig
from edge_agent.events import Events
from edge_agent.gradients.config import GradientsConfig
from edge_agent.spool.spool import Spool
from shoalctl.pki.pki import FleetPki

RUN = bytes(16)
MODULE = """
import gymnasium, numpy as np
class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3, start=5)
    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}
class Blind(Base):
    def step(self, action):
        return np.full(2, np.nan, np.float32), 0.0, False, False, {}
class Wide(Base):
    def step(self, action):
        return np.full(2, 9.0), 0.0, False, False, {}
class Camera(Base):
    observation_space = gymnasium.spaces.Box(
        np.arange(84 * 84 * 3, dtype=np.uint8).reshape(84, 84, 3) // 255, 255, (84, 84, 3), np.uint8
    )
    def reset(self, seed=None, options=None):
        return np.full((84, 84, 3), 9, np.uint8), {}
    def step(self, action):
        return np.full((84, 84, 3), 9, np.uint8), 0.0, False, False, {}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentConfig:
    (tmp_path / "checked_environments.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return AgentConfig(
        fleet="demo",
        identity=tmp_path / "nobody",
        state_dir=tmp_path / "state",
        env=EnvConfig("checked_environments:Base"),
        broker=BrokerConfig(port=free_port()),
        parameter_server=ServerConfig(port=free_port()),
    )


def look(config: AgentConfig) -> dict[str, Finding]:
    return {finding.name: finding for finding in asyncio.run(check(config))}


def within(config: AgentConfig, name: str, actor: ActorConfig | None = None) -> AgentConfig:
    env = EnvConfig(f"checked_environments:{name}")
    return replace(config, env=env, actor=actor or config.actor)


def test_what_gradients_are_computed_with_is_looked_at_where_it_is_needed(
    config: AgentConfig, tmp_path: Path
) -> None:
    assert "gradients" not in look(config)
    (tmp_path / "no_torch_here.py").write_text("raise ModuleNotFoundError('no', name='torch')\n")
    lacking = replace(config, mode="gradients", gradients=GradientsConfig(worker="no_torch_here:a"))
    found = look(lacking)["gradients"]
    assert found.level is Level.FAULT
    assert "pip install 'shoal[train]'" in found.detail
    found = look(replace(config, mode="gradients"))["gradients"]
    assert found.level is Level.OK
    assert "computes 4 of each chunk of 200 steps, pushed as int8" in found.detail


def test_a_missing_identity_is_one_fault_and_what_needs_it_is_skipped(config: AgentConfig) -> None:
    found = look(config)
    levels = {name: finding.level for name, finding in found.items()}
    assert levels == {
        "identity": Level.FAULT,
        "clock": Level.SKIPPED,
        "environment": Level.OK,
        "step_time": Level.OK,
        "safe_action": Level.OK,
        "spool": Level.OK,
        "broker": Level.SKIPPED,
        "parameter_server": Level.SKIPPED,
    }
    assert exit_code(list(found.values())) == 4


def test_a_broken_environment_is_a_fault_and_its_time_is_not_measured(config: AgentConfig) -> None:
    found = look(within(config, "Blind"))
    assert (found["environment"].level, found["environment"].exit_code) == (Level.FAULT, 1)
    assert "checked_environments:Blind: step gave an observation that is not finite" in (
        found["environment"].detail
    )
    assert found["step_time"].level is Level.SKIPPED
    assert found["safe_action"].level is Level.OK, "a fault never hides the next one"


def test_an_environment_that_cannot_be_made_is_one_fault(config: AgentConfig) -> None:
    found = look(within(config, "Nothing"))
    assert (found["environment"].level, found["environment"].exit_code) == (Level.FAULT, 4)
    assert found["step_time"].level is found["safe_action"].level is Level.SKIPPED


def test_what_an_agent_can_live_with_is_a_warning_that_does_not_fail(config: AgentConfig) -> None:
    finding = look(within(config, "Wide"))["environment"]
    assert (finding.level, finding.exit_code, finding.ok) == (Level.WARN, 0, True)
    assert "cast to float32" in finding.detail
    assert "outside the space" in finding.detail


def test_a_space_of_images_is_shown_on_part_of_a_line(config: AgentConfig) -> None:
    detail = look(within(config, "Camera"))["environment"].detail
    assert len(detail) < 400
    assert "\n" not in detail
    assert "Discrete(3, start=5)" in detail


@pytest.mark.parametrize(
    ("actor", "level", "said"),
    [
        (ActorConfig(), Level.OK, "nothing acts before there is a policy;.* would take action 5;"),
        (ActorConfig(safe_action=[7]), Level.OK, "would take action 7$"),
        (
            ActorConfig(before_policy="safe_action"),
            Level.WARN,
            "takes action 5 until .*; set actor.safe_action if that moves something",
        ),
        (ActorConfig(before_policy="safe_action", safe_action=[6]), Level.OK, "takes action 6 u"),
        (ActorConfig(safe_action=[0]), Level.FAULT, "from 5 to 7"),
    ],
)
def test_the_safe_action_is_shown_and_the_first_of_several_is_only_a_guess(
    config: AgentConfig, actor: ActorConfig, level: Level, said: str
) -> None:
    finding = look(within(config, "Base", actor))["safe_action"]
    assert finding.level is level
    assert re.search(said, finding.detail), finding.detail


def test_the_safe_action_of_a_box_is_zero_and_no_guess(config: AgentConfig) -> None:
    actor = ActorConfig(before_policy="safe_action")
    finding = look(replace(config, env=EnvConfig("Pendulum-v1"), actor=actor))["safe_action"]
    assert finding.level is Level.OK
    assert "action [0.0]" in finding.detail


def test_an_environment_too_slow_for_the_control_rate_is_a_fault_with_both_numbers() -> None:
    slow = Trial(64, 0, 50.0, 0.1, ())
    finding = step_time(slow, 1, 50.0)
    assert (finding.level, finding.exit_code) == (Level.FAULT, 1)
    assert finding.detail.startswith("one step takes 50 ms, control_hz = 50 allows 20 ms")
    assert "env.num_envs" in step_time(slow, 8, 50.0).detail
    assert step_time(slow, 1, 10.0).level is Level.OK
    assert step_time(slow, 1, None).level is Level.OK


def test_a_check_makes_no_files(config: AgentConfig, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert "none yet" in look(config)["spool"].detail
    assert sorted(each for each in tmp_path.iterdir() if each.name != "__pycache__") == before


def test_a_spool_is_counted_or_in_use_and_no_agent_is_disturbed(config: AgentConfig) -> None:
    events = Events(DEVICE, RUN, clock=lambda: 0.0)
    with Spool(config.spool_path, max_bytes=2**20, run_id=RUN, events=events) as spool:
        spool.append(b"chunk", 1)
        finding = look(config)["spool"]
        assert finding.level is Level.OK
        assert "in use by a running agent" in finding.detail
    files = sorted(config.state_dir.iterdir())
    finding = look(config)["spool"]
    assert "1 chunks wait, 5 bytes" in finding.detail
    assert sorted(config.state_dir.iterdir()) == files


def test_a_damaged_spool_is_a_warning_and_a_useless_directory_a_fault(config: AgentConfig) -> None:
    config.state_dir.mkdir()
    config.spool_path.write_bytes(b"no database" * 100)
    assert look(config)["spool"].level is Level.WARN
    config.spool_path.unlink()
    config.state_dir.rmdir()
    config.state_dir.write_text("a file")
    assert look(config)["spool"].level is Level.FAULT


def test_a_broker_that_does_not_admit_the_device_says_where_to_add_it(
    config: AgentConfig, tmp_path: Path
) -> None:
    pki = FleetPki.create(tmp_path / "pki", "demo")
    with nats_broker(tmp_path, devices=[DEVICE], pki=pki) as broker:
        known = BrokerConfig(host=broker.host, port=broker.port)
        stranger = replace(config, identity=identity_of(pki, "pi-9"), broker=known)
        finding = look(stranger)["broker"]
        assert (finding.level, finding.exit_code) == (Level.FAULT, 2)
        assert "the broker does not admit pi-9" in finding.detail
        assert "add it to `devices` in broker.toml or to the broker's devices file" in (
            finding.detail
        )
        admitted = replace(stranger, identity=identity_of(pki, DEVICE))
        assert look(admitted)["broker"].level is Level.OK


def test_beside_a_running_agent_the_environment_is_found_and_never_made(
    config: AgentConfig, tmp_path: Path
) -> None:
    (tmp_path / "held_hardware.py").write_text(
        "def make():\n    raise RuntimeError('the port is in use')\n"
    )
    env = EnvConfig("held_hardware:make")
    found = {each.name: each for each in check_beside(replace(config, env=env))}
    assert found["environment"].ok
    assert found["runtime"].ok
    gone = check_beside(replace(config, env=EnvConfig("held_hardware:makes")))
    assert exit_code(gone) == 4
