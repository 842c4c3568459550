"""Has an exported policy act greedily: onnxruntime and the environment, nothing else of a learner.

Each episode is the first of a copy of its own, with a seed of its own, so that episode i begins
alike for every policy and meets the same chance: returns of two policies can be compared in pairs.
Noise is zero, which for every kind of policy is its deterministic action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge_agent.config import EnvConfig
from edge_agent.environments.env import Environments, make_env
from shoal.layout import ObservationLayout
from shoal.policy import ACTION, NEXT_STATE, NOISE, OBSERVATION, STATE
from shoal.tensors import Array

SEED = 77_000
UPDATES = "shoal.updates"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Returns of episodes.

    Attributes:
        mean: Of their returns.
        std: Standard deviation over the episodes.
        episodes: How many.
        returns: Of each episode, in the order of their seeds; empty where they were not kept.
        updates: Optimiser updates that the policy is of; None where its file does not say.
    """

    mean: float
    std: float
    episodes: int
    returns: Sequence[float] = ()
    updates: int | None = None

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Evaluation":
        """Reads what `asdict` gave."""
        return cls(**{**told, "returns": tuple(told.get("returns", ()))})


@dataclass(frozen=True, slots=True)
class Loss:
    """How much less one policy gets than another, in episodes that begin alike.

    Attributes:
        percent: 100 (R - R') / |R| of the means, so that it is over zero where the other is worse,
            whether returns are rewards or costs.
        error: Standard error of that, from the spread of the differences between the episodes.
    """

    percent: float
    error: float


def loss_of(one: Evaluation, other: Evaluation) -> Loss | None:
    """How much less the other gets; None where they have no episodes in common.

    Args:
        one: What it is a part of.
        other: Of as many episodes, with the same seeds.
    """
    if len(one.returns) != len(other.returns) or not one.returns:
        return None
    differences = np.subtract(one.returns, other.returns)
    magnitude = max(abs(float(np.mean(one.returns))), 1e-9)
    error = float(np.std(differences, ddof=1)) / len(differences) ** 0.5 if differences.any() else 0
    return Loss(100.0 * float(np.mean(differences)) / magnitude, 100.0 * error / magnitude)


def open_policy(policy: Path) -> onnxruntime.InferenceSession:
    """Opens a self-contained ONNX file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(policy, options, providers=["CPUExecutionProvider"])


def evaluate(
    session: onnxruntime.InferenceSession,
    env_id: str,
    *,
    episodes: int = 100,
    kwargs: dict[str, object] | None = None,
) -> Evaluation:
    """Mean return of a policy over so many episodes.

    Args:
        session: The policy, with its weights.
        env_id: What it acts in.
        episodes: At least one.
        kwargs: Of the environment.
    """
    config = EnvConfig(env_id, num_envs=episodes, seed=SEED, kwargs=kwargs or {})
    with make_env(config) as environments:
        returns = _play(session, environments)
    says = session.get_modelmeta().custom_metadata_map.get(UPDATES)
    return Evaluation(
        mean=float(np.mean(returns)),
        std=float(np.std(returns)),
        episodes=episodes,
        returns=tuple(returns),
        updates=None if says is None else int(says),
    )


def _play(session: onnxruntime.InferenceSession, environments: Environments) -> list[float]:
    copies = environments.num_envs
    widths = {port.name: port.shape[-1] for port in session.get_inputs()}
    layout = ObservationLayout.of(environments.spec.observation)
    names = {field.path: field.input_name(OBSERVATION) for field in layout.fields}
    noise = np.zeros((copies, widths[NOISE]), np.float32)
    state: NDArray[np.float32] | None = (
        np.zeros((copies, widths[STATE]), np.float32) if STATE in widths else None
    )
    outputs = [ACTION] if state is None else [ACTION, NEXT_STATE]
    observations = environments.reset()
    returns: dict[int, float] = {}
    while len(returns) < copies:
        feeds: dict[str, Array] = {
            names[path]: leaf for path, leaf in layout.unpack(observations).items()
        }
        feeds[NOISE] = noise
        if state is not None:
            feeds[STATE] = state
        action, *rest = session.run(outputs, feeds)
        step = environments.step(action)
        if state is not None:
            (state,) = rest
            state[step.terminated | step.truncated] = 0.0
        for ending in step.endings:
            returns.setdefault(ending.env, ending.total_return)
        observations = step.observations
    return [returns[copy] for copy in range(copies)]
