"""What a demo refuses before anything starts, and how it ends when it cannot go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ConfigError, ServiceEnded
from shoal.spaces import Box, Discrete, EnvSpec, MultiDiscrete, unbounded
from shoal.v1 import fleet_pb2
from shoalctl.demo.options import PlanFlags, make_plan
from shoalctl.demo.processes import MAX_CRASHES, Processes, Program
from shoalctl.demo.result import End, Outcome, result_envelope
from shoalctl.demo.summary import summary
from shoalctl.demo.workspace import make_workspace

CARTPOLE = EnvSpec("CartPole-v1", unbounded((4,)), Discrete(2))
PENDULUM = EnvSpec(
    "Pendulum-v1", unbounded((3,)), Box(np.full(1, -2, np.float32), np.full(1, 2, np.float32))
)
SEVERAL = EnvSpec("mine:Several", unbounded((3,)), MultiDiscrete(np.full(2, 3), np.zeros(2, int)))


def flags(**given: object) -> PlanFlags:
    values: dict[str, object] = dict.fromkeys(PlanFlags.__dataclass_fields__)
    values |= {"env": "CartPole-v1", "seed": 0, "sets": (), "env_sets": ()}
    return PlanFlags(**(values | given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "given", "said"),
    [
        (CARTPOLE, {"algorithm": "sac"}, "cannot train in CartPole-v1: .* acts in one Box"),
        (PENDULUM, {"env": "Pendulum-v1", "algorithm": "dqn"}, "DQN acts in one Discrete space"),
        (SEVERAL, {"env": "mine:Several", "algorithm": "dqn"}, "DQN acts in one Discrete space"),
        (CARTPOLE, {"network": "nope:x"}, "nope"),
        (CARTPOLE, {"network": "mpl"}, "mpl"),
        (CARTPOLE, {"sets": ("training.mode=gradients",)}, "give --mode gradients"),
        (
            CARTPOLE,
            {"gradients": True, "sets": ("training.mode=sync",)},
            "give --mode trajectories",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_starts(
    spec: EnvSpec, given: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_workspace(tmp_path / "demo", make_plan(flags(**given)), spec)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sync": True}, "--sync with --mode gradients"),
        ({"algorithm": "dqn"}, "--algorithm dqn with --mode gradients"),
        ({"algorithm": "sac"}, "--algorithm sac with --mode gradients"),
    ],
)
def test_what_the_mode_gradients_never_trains_is_refused_at_once(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(flags(gradients=True, **given))


def test_a_program_that_crashes_again_and_again_ends_the_demo_as_a_bug(tmp_path: Path) -> None:
    restarts: list[int] = []

    async def crash() -> None:
        async with Processes(tmp_path, on_restart=lambda _, code: restarts.append(code)) as running:
            await running.start(Program("learner", ("-c", "echo boom; exit 5"), program="/bin/sh"))
            await asyncio.wait_for(running.supervise(), 60)

    with pytest.raises(ServiceEnded, match=r"boom \| boom.*learner\.log") as caught:
        asyncio.run(crash())
    assert caught.value.exit_code == 5
    assert len(restarts) == MAX_CRASHES - 1


def test_before_anything_was_told_no_chunk_is_said_to_be_missing() -> None:
    outcome = Outcome("CartPole-v1", "appo", 0, None, End.INTERRUPTED, 1.0, 475.0, None, {})
    training = fleet_pb2.Training(kl_staleness=-8.7e-9)
    text = summary(result_envelope(outcome, training, [], fleet_pb2.Audit()))
    assert "nothing known yet" in text
    assert "NOT BALANCED" not in text
    assert "by staleness 0 nats" in text
    wrong = fleet_pb2.Audit(produced=3, trained=2)
    assert "NOT BALANCED" in summary(result_envelope(outcome, training, [], wrong))
