"""`shoal agent check ENV`: what is wrong with an environment is said once, with what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from edge.worlds import World, any_space
from gymnasium import spaces
from hypothesis import given, settings
from typer.testing import CliRunner

from edge_agent.checks.env_check import (
    Run,
    check_endings,
    check_environment,
    check_exactness,
    check_seeding,
    reset_time,
)
from edge_agent.checks.finding import Finding, Level, exit_code
from edge_agent.checks.ledger import Episode, Ledger
from edge_agent.checks.trial import Trial, attempt
from edge_agent.cli import agent_app
from edge_agent.config import EnvConfig
from edge_agent.environments.env import Environments
from shoal.errors import ConfigError

NAMES = [
    "spaces",
    "observations",
    "seeding",
    "exactness",
    "endings",
    "step_time",
    "reset_time",
]
MODULE = '''
import threading, time
import gymnasium, numpy as np
class Good(gymnasium.Env):
    """Counts; cannot be pickled."""
    observation_space = gymnasium.spaces.Dict(
        {"t": gymnasium.spaces.Discrete(99), "x": gymnasium.spaces.Box(-9, 9, (2,), np.float64)}
    )
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, length=3, slow_s=0.0):
        self.lock, self.length, self.slow_s = threading.Lock(), length, slow_s
    def seen(self):
        return {"t": self.t, "x": self.np_random.uniform(-1, 1, 2)}
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}
    def step(self, action):
        time.sleep(self.slow_s)
        self.t += 1
        return self.seen(), 1.0, False, self.t == self.length, {}
class Unseeded(Good):
    def seen(self):
        return {"t": self.t, "x": np.random.uniform(-1, 1, 2)}
class Forgetful(Good):
    """Its time limit terminates."""
    def step(self, action):
        observation, reward, _, over, info = super().step(action)
        return observation, reward, over, False, info
class Hoarder(Good):
    """Keeps something beyond a reset."""
    resets = 0
    def reset(self, seed=None, options=None):
        self.resets += 1
        return super().reset(seed)
    def step(self, action):
        observation, reward, _, over, info = super().step(action)
        return observation, reward + (self.resets > 8), False, over, info
class Endless(Good):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        self.t %= 90
        return observation, reward, False, False, info
class Breaks(Good):
    calls = 0
    def step(self, action):
        self.calls += 1
        if self.calls > 66:
            raise RuntimeError("motor jammed")
        return super().step(action)
class Text(Good):
    observation_space = gymnasium.spaces.Tuple((gymnasium.spaces.Text(3),))
class Unbounded(Good):
    """Its bounds became NaN after gymnasium looked at them."""
    observation_space = gymnasium.spaces.Dict({"x": gymnasium.spaces.Box(-9, 9, (2,))})
    observation_space["x"].low[1] = np.nan
class Lavish(Good):
    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, -1e30, terminated, truncated, info
class Outside(Good):
    def seen(self):
        return {"t": 100, "x": np.zeros(2)}
'''


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "contract_environments.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def look(name: str, control_hz: float | None = None, **kwargs: object) -> dict[str, Finding]:
    config = EnvConfig(f"contract_environments:{name}", kwargs=kwargs)
    found = check_environment(config, control_hz=control_hz)
    assert [each.name for each in found] == NAMES
    assert all("\n" not in each.detail for each in found)
    return {each.name: each for each in found}


def test_a_good_environment_passes_though_it_cannot_be_pickled() -> None:
    found = look("Good")
    assert [each.level for each in found.values()] == [Level.OK] * len(NAMES)
    assert "24 bytes an observation" in found["spaces"].detail
    assert "episodes of [3, 3, 3] steps" in found["exactness"].detail
    assert found["endings"].detail.startswith("0 episodes terminated, 3 truncated")


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_environments_of_gymnasium_pass(env_id: str) -> None:
    found = check_environment(EnvConfig(env_id, num_envs=2, seed=3), control_hz=1.0)
    assert [(each.name, each.level) for each in found] == [(name, Level.OK) for name in NAMES]


@pytest.mark.parametrize(
    ("name", "finding", "said"),
    [
        ("Unseeded", "seeding", "differ at the reset: draw from self.np_random"),
        ("Forgetful", "endings", "terminated at exactly step 3: if that is a limit return trunc"),
        ("Hoarder", "exactness", "keeps state beyond its resets"),
        (
            "Lavish",
            "observations",
            r"rewards such as -1e\+30: .* over its training.max_reward, 1e\+12",
        ),
        ("Endless", "endings", r"no episode ended in \d+ steps and there is no limit"),
    ],
)
def test_what_an_agent_can_live_with_is_a_warning_with_advice(
    name: str, finding: str, said: str
) -> None:
    found = look(name, **({"length": 40} if name == "Hoarder" else {}))
    assert found[finding].level is Level.WARN
    assert re.search(said, found[finding].detail)
    assert exit_code(list(found.values())) == 0


@pytest.mark.parametrize(
    ("name", "finding", "said"),
    [
        ("Text", "spaces", "0 in it, a Text, is not supported"),
        ("Unbounded", "spaces", "x: a box of shape (2,) has a bound that is NaN: use -inf and inf"),
        ("Nothing", "spaces", 'has no environment "Nothing"'),
        ("Outside", "observations", "t: 100, its observation space says a whole number from 0"),
        ("Breaks", "seeding", "raised RuntimeError in step: motor jammed"),
    ],
)
def test_what_no_agent_can_use_is_a_fault_and_what_needs_it_is_skipped(
    name: str, finding: str, said: str
) -> None:
    found = look(name)
    assert found[finding].level is Level.FAULT
    assert said in found[finding].detail
    assert exit_code(list(found.values())) != 0
    after = NAMES[NAMES.index(finding) + 1 :]
    assert found[after[0]].level is Level.SKIPPED
    assert found[after[1]].level is Level.SKIPPED


def test_an_environment_too_slow_for_the_rate_is_a_fault() -> None:
    found = look("Good", control_hz=1000, slow_s=0.005)
    assert found["step_time"].level is Level.FAULT
    assert "lower actor.control_hz" in found["step_time"].detail


def test_a_reset_that_takes_several_deadlines_is_a_warning() -> None:
    trial = Trial(64, 3, 1.0, 500.0, ())
    assert reset_time(trial, None).level is Level.OK
    assert reset_time(trial, 2).level is Level.OK
    finding = reset_time(trial, 50)
    assert finding.level is Level.WARN
    assert "about 25 deadlines" in finding.detail


def ended(length: int, *, terminated: bool = False, truncated: bool = False) -> Episode:
    return Episode(length, 1.0, terminated, truncated, b"", b"")


@pytest.mark.parametrize(
    ("episodes", "limit", "said"),
    [
        ([ended(5, terminated=True), ended(7, truncated=True)], None, None),
        ([ended(7, truncated=True)] * 5, 7, None),
        ([ended(1, terminated=True)] * 3, None, None),
        ([ended(7, terminated=True)] * 2, None, None),
        ([ended(5, terminated=True, truncated=True)], 9, "terminated and truncated at once in 1"),
        ([ended(9, terminated=True)], 9, "terminated at exactly step 9"),
        ([ended(7, terminated=True)] * 3, None, "terminated at exactly step 7"),
        ([ended(11, truncated=True)], 9, "an episode took 11 steps; its limit is 9 steps"),
    ],
)
def test_a_limit_is_told_from_a_true_end(
    episodes: list[Episode], limit: int | None, said: str | None
) -> None:
    finding = check_endings(episodes, 100, limit)
    assert finding.level is (Level.OK if said is None else Level.WARN)
    assert said is None or said in finding.detail


def test_no_end_within_the_limit_is_fine() -> None:
    assert check_endings([], 100, 1000).level is Level.OK


@settings(max_examples=20)
@given(any_space(), any_space())
def test_every_space_can_be_looked_at(seen: spaces.Space[Any], done: spaces.Space[Any]) -> None:
    with Environments("world", [World(seen, done, truncates=True)], seed=0) as envs:
        assert attempt(envs.copies, envs.spec.observation).warnings == []
        # A world draws on: it has no seed.
        check_seeding(envs, seed=0, clock=lambda: 0.0)


def test_a_step_invented_by_a_wrapper_is_noticed() -> None:
    """Gymnasium#1103: after the end one more step that only resets."""
    world = World(spaces.Discrete(9), spaces.Discrete(2), length=3)
    ledger = Ledger(world)
    ledger.reset()
    for _ in range(3):
        ledger.step(0)
    ledger.reset()
    assert [(e.length, e.terminated, e.truncated) for e in ledger.episodes] == [(3, True, False)]
    assert ledger.steps == 3
    for recorded, steps in (([], 3), (ledger.episodes, 4), ([ended(4, terminated=True)], 3)):
        finding = check_exactness(Run(recorded, steps, ledger), replays=False)
        assert finding.level is Level.FAULT
    assert check_exactness(Run(ledger.episodes, 3, ledger), replays=False).level is Level.OK


def run(*arguments: str) -> Any:  # noqa: ANN401
    return CliRunner().invoke(agent_app, ["check", *arguments])


def test_the_command_needs_no_configuration_and_prints_a_line_for_each_finding() -> None:
    result = run("contract_environments:Good", "--kwargs", "length=2", "--num-envs", "2")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[1] for line in lines] == NAMES
    assert "episodes of [2, 2, 2] steps" in result.stdout


def test_the_command_gives_json_and_the_code_of_the_first_fault() -> None:
    result = run("contract_environments:Nothing", "-o", "json")
    assert result.exit_code == 4
    envelope = json.loads(result.stdout)
    assert envelope["schema"] == "shoal.v1.AgentCheck"
    assert [item["name"] for item in envelope["items"]] == NAMES
    assert envelope["items"][0]["level"] == "fault"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["CartPole-v1", "--fleet", "pond"], "looked at alone"),
        (["CartPole-v1", "--kwargs", "render_mode"], "give KEY=VALUE"),
        (["CartPole-v1", "--kwargs", "a b=1"], "give KEY=VALUE"),
        (["CartPole-v1", "--control-hz", "0"], "control_hz"),
        (["CartPole-v1", "--num-envs", "-1"], "num_envs"),
        (["CartPole-v1", "--num-envs", "0"], "num_envs"),
        (["--kwargs", "a=1"], "goes with ENV"),
        # Who has no configuration, or means an environment, is told of the other way.
        ([], "--config FILE; to look at an environment alone: shoal agent check ENV"),
        (["--env", "Acrobot-v1"], "to look at Acrobot-v1 alone: shoal agent check Acrobot-v1"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)


def test_who_checks_a_configuration_is_not_told_of_environments(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('state_dir = "state"')
    for arguments in (["--config", str(tmp_path / "agent.toml")], ["--fleet", "pond"]):
        result = run(*arguments)
        assert isinstance(result.exception, ConfigError)
        assert "alone" not in str(result.exception)


def test_a_seed_makes_the_same_findings_again() -> None:
    first, second = (
        [
            finding.detail
            for finding in check_environment(EnvConfig("CartPole-v1", seed=5))
            if "time" not in finding.name
        ]
        for _ in range(2)
    )
    assert first == second
