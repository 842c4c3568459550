"""What the suites are made of: environments, algorithms, bars and budgets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

POSITIONS = "examples.cartpole_positions:CartPolePositions"
PIXELS = "examples.cartpole_pixels:CartPolePixels"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a suite.

    Attributes:
        name: For `--rows`.
        title: For people.
        env: A gymnasium id or a dotted path.
        algorithm: The short name of one of Shoal's.
        bar: Mean return that counts as solved.
        steps: Environment steps in which it has to be reached.
        judged: By what: the mean return of the last 100 training episodes at any moment, or that
            of the 100 evaluated at the end, where an episode is so long that the budget holds too
            few of them.
        timeout_s: For one run.
        flags: More flags of `shoal demo`.
        peer: Whom it stands beside; an algorithm of `peers/sb3.py`.
        episodes: Evaluated for each policy: more where returns spread so much that a hundred do
            not tell two policies apart.
    """

    name: str
    title: str
    env: str
    algorithm: str
    bar: float
    steps: int
    judged: Literal["training", "evaluation"] = "training"
    timeout_s: float = 1800.0
    flags: tuple[str, ...] = ()
    peer: str = ""
    episodes: int = 100

    @property
    def rounds(self) -> bool:
        """Whether it publishes in int8."""
        return "fp32" not in self.flags

    @property
    def gradients(self) -> bool:
        """Whether devices push gradients in place of trajectories."""
        return "gradients" in self.flags


_NOT_FOR_INT8 = ("--set", "training.network.quantization_aware=false")
CLASSIC: tuple[Row, ...] = (
    Row("cartpole-appo", "CartPole-v1, APPO", "CartPole-v1", "appo", 475, 200_000, peer="ppo"),
    Row(
        "cartpole-gradients",
        "CartPole-v1, APPO, gradients of the devices",
        "CartPole-v1",
        "appo",
        475,
        200_000,
        flags=("--mode", "gradients"),
    ),
    Row("cartpole-dqn", "CartPole-v1, DQN", "CartPole-v1", "dqn", 475, 100_000, peer="dqn"),
    Row(
        "cartpole-dqn-plain",
        "CartPole-v1, DQN, not trained for int8",
        "CartPole-v1",
        "dqn",
        475,
        100_000,
        flags=_NOT_FOR_INT8,
    ),
    Row(
        "cartpole-dqn-priority",
        "CartPole-v1, DQN, prioritized replay",
        "CartPole-v1",
        "dqn",
        475,
        100_000,
        flags=("--set", "training.settings.priority_alpha=0.6"),
    ),
    Row(
        "cartpole-impala",
        "CartPole-v1, IMPALA",
        "CartPole-v1",
        "impala",
        475,
        400_000,
    ),
    Row(
        "acrobot-appo",
        "Acrobot-v1, APPO",
        "Acrobot-v1",
        "appo",
        -100,
        250_000,
        peer="ppo",
        episodes=400,
    ),
    Row(
        "pendulum-sac",
        "Pendulum-v1, SAC",
        "Pendulum-v1",
        "sac",
        -170,
        20_000,
        judged="evaluation",
        peer="sac",
        episodes=1000,
    ),
    Row(
        "pendulum-sac-nstep",
        "Pendulum-v1, SAC, 3 steps",
        "Pendulum-v1",
        "sac",
        -170,
        20_000,
        judged="evaluation",
        flags=("--set", "training.settings.n_step=3"),
    ),
    Row(
        "mountaincar-sac",
        "MountainCarContinuous-v0, SAC, correlated noise",
        "MountainCarContinuous-v0",
        "sac",
        90,
        15_000,  # of the 50,000 that others take
        judged="evaluation",
        peer="sac",
        episodes=400,
    ),
    Row(
        "positions-lstm",
        "CartPole without velocities, APPO, LSTM",
        POSITIONS,
        "appo",
        450,
        300_000,
        flags=("--network", "lstm"),
    ),
    Row(
        "lander-appo",
        "LunarLander-v3, APPO",
        "LunarLander-v3",
        "appo",
        200,
        1_000_000,
        timeout_s=5400.0,
        peer="ppo",
        episodes=400,
    ),
    Row(
        "lander-sac",
        "LunarLanderContinuous-v3, SAC",
        "LunarLanderContinuous-v3",
        "sac",
        200,
        500_000,
        timeout_s=10_800.0,
        peer="sac",
        episodes=400,
    ),
    Row(
        "pixels-cnn",
        "CartPole as pictures, APPO, CNN",
        PIXELS,
        "appo",
        475,
        400_000,
        timeout_s=5400.0,
        flags=("--network", "cnn"),
    ),
)

_BATCH = ("--set", "training.batch_steps=2048")
_BOUNDS = {
    # A fleet in lockstep with its learner, which waits for all of it: nothing is ever stale.
    "0": ("--lockstep",),
    # A batch is 2 chunks of each device, and 12 updates. Devices that record more than 2 under one
    # version are ahead of the learner, by as much on a fast machine as on a slow one.
    "4": ("--max-lag", "4", "--ahead", "4", *_BATCH),
    "32": ("--max-lag", "32", "--ahead", "6", *_BATCH),
    "any": ("--max-lag", "-1", "--ahead", "16", *_BATCH),
}
_KINDS = {
    "fp32": ("--precision", "fp32"),
    "int8": (),
    "qat": ("--set", "training.network.quantization_aware=true"),
}
_KIND_TITLES = {"fp32": "fp32", "int8": "int8", "qat": "int8, trained for it"}
LAG: tuple[Row, ...] = tuple(
    Row(
        f"lag-{bound}-{kind}",
        f"lag {'unbounded' if bound == 'any' else f'<= {bound}'}, {_KIND_TITLES[kind]}",
        "CartPole-v1",
        "appo",
        475,
        200_000,
        flags=(*of_bound, *of_kind),
    )
    for bound, of_bound in _BOUNDS.items()
    for kind, of_kind in _KINDS.items()
)
SUITES: dict[str, tuple[Row, ...]] = {"classic": (*CLASSIC, *LAG), "lag": LAG}


def choose(suite: str, names: Sequence[str]) -> list[Row]:
    """Rows of a suite whose names are given, or begin with one that is given; all without any.

    Raises:
        ValueError: A name fits no row.
    """
    rows = SUITES[suite]
    for name in names:
        if not any(_fits(row, name) for row in rows):
            raise ValueError(f"no row {name!r}: there are {', '.join(row.name for row in rows)}")
    return [row for row in rows if not names or any(_fits(row, name) for name in names)]


def _fits(row: Row, name: str) -> bool:
    return row.name == name or row.name.startswith(f"{name}-")
