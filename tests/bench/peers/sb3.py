"""Stable-Baselines3 PPO, DQN or SAC with the settings of RL Baselines3 Zoo.

Settings: `hyperparams/ppo.yml`, `dqn.yml` and `sac.yml` of
https://github.com/DLR-RM/rl-baselines3-zoo, which also has the budget of each. Step sizes and clip
ranges that fall, fall over that budget. A run that has not solved by then goes on as
Stable-Baselines3 itself continues one (`learn(..., reset_num_timesteps=False)`): the same budget
again on a schedule that falls from half its start to zero, and so on until the timeout. The note of
the result says so.

With `--steps N` a run ends after N steps, solved or not; with `--evaluate N` the policy then acts
deterministically for N episodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from contest import PeerOptions, PeerResult, SolveDetector, now_s, read_options
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

IMPORTED_AT_S = now_s()
ALGORITHMS: Mapping[str, type[BaseAlgorithm]] = {"ppo": PPO, "dqn": DQN, "sac": SAC}


def falling(start: float) -> Callable[[float], float]:
    """From a value to zero, over the budget."""
    return lambda left: left * start


@dataclass(frozen=True)
class Settings:
    """What the zoo says of an algorithm in an environment."""

    budget: int
    envs: int = 1
    normalize: bool = False
    keywords: Mapping[str, Any] = field(default_factory=dict)


SETTINGS: Mapping[tuple[str, str], Settings] = {
    ("ppo", "CartPole-v1"): Settings(
        budget=100_000,
        envs=8,
        keywords={
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": falling(1e-3),
            "clip_range": falling(0.2),
        },
    ),
    ("ppo", "Acrobot-v1"): Settings(
        budget=1_000_000,
        envs=16,
        normalize=True,
        keywords={
            "n_steps": 256,
            "gae_lambda": 0.94,
            "gamma": 0.99,
            "n_epochs": 4,
            "ent_coef": 0.0,
        },
    ),
    # The zoo has the Lunar Landers of version 2.
    ("ppo", "LunarLander-v3"): Settings(
        budget=1_000_000,
        envs=16,
        keywords={
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "gamma": 0.999,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
    ),
    ("dqn", "CartPole-v1"): Settings(
        budget=50_000,
        keywords={
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    ("sac", "Pendulum-v1"): Settings(budget=20_000, keywords={"learning_rate": 1e-3}),
    ("sac", "MountainCarContinuous-v0"): Settings(
        budget=50_000,
        keywords={
            "learning_rate": 3e-4,
            "buffer_size": 50_000,
            "batch_size": 512,
            "ent_coef": 0.1,
            "train_freq": 32,
            "gradient_steps": 32,
            "gamma": 0.9999,
            "tau": 0.01,
            "learning_starts": 0,
            "use_sde": True,
            "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
        },
    ),
    ("sac", "LunarLanderContinuous-v3"): Settings(
        budget=500_000,
        keywords={
            "learning_rate": falling(7.3e-4),
            "buffer_size": 1_000_000,
            "batch_size": 256,
            "ent_coef": "auto",
            "gamma": 0.99,
            "tau": 0.01,
            "train_freq": 1,
            "gradient_steps": 1,
            "learning_starts": 10_000,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
    ),
}


class UntilSolved(BaseCallback):  # type: ignore[misc]
    """Stops training at the deadline, after the last step, or when the criterion is met."""

    def __init__(self, detector: SolveDetector, options: PeerOptions) -> None:
        super().__init__()
        self._detector = detector
        self._deadline_s = now_s() + options.timeout_s
        self._steps = options.steps
        self.stopped = False
        self.solved_at_s = self.solved_at_steps = 0.0

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            solved = "episode" in info and self._detector.add(float(info["episode"]["r"]))
            if solved and not self.solved_at_s:
                self.solved_at_s, self.solved_at_steps = now_s(), self.num_timesteps
        whole = self._steps and self.num_timesteps >= self._steps
        enough = self.solved_at_s and not self._steps
        self.stopped = bool(whole or enough or now_s() > self._deadline_s)
        return not self.stopped


def run(options: PeerOptions, settings: Settings) -> PeerResult:
    """Train until solved, out of steps or out of time."""
    if options.threads:
        torch.set_num_threads(options.threads)
    detector = SolveDetector(options.threshold)
    until_solved = UntilSolved(detector, options)
    environments: VecEnv = make_vec_env(options.env, n_envs=settings.envs, seed=options.seed)
    if settings.normalize:
        environments = VecNormalize(environments, gamma=settings.keywords["gamma"])
    model = ALGORITHMS[options.algorithm](
        "MlpPolicy",
        environments,
        seed=options.seed,
        device="cpu",
        **settings.keywords,
    )
    legs = 0
    while not until_solved.stopped:
        model.learn(settings.budget, callback=until_solved, reset_num_timesteps=legs == 0)
        legs += 1
    ended_at_s = now_s()
    mean, std = evaluate(model, options, environments)
    return PeerResult(
        solved=detector.solved,
        imported_at_s=IMPORTED_AT_S,
        ended_at_s=until_solved.solved_at_s or ended_at_s,
        env_steps=int(until_solved.solved_at_steps or model.num_timesteps),
        episodes=detector.episodes,
        return_mean=detector.mean,
        note="" if legs == 1 else f"past its {settings.budget} steps: continued {legs - 1} time(s)",
        evaluation_mean=mean,
        evaluation_std=std,
    )


def evaluate(
    model: BaseAlgorithm, options: PeerOptions, environments: VecEnv
) -> tuple[float | None, float | None]:
    """Mean return of the deterministic policy, and its deviation over episodes."""
    if not options.evaluate:
        return None, None
    fresh: VecEnv = make_vec_env(options.env, n_envs=1, seed=options.seed + 10_000)
    if isinstance(environments, VecNormalize):
        fresh = VecNormalize(fresh, training=False, norm_reward=False)
        sync_envs_normalization(environments, fresh)
    returns, _ = evaluate_policy(
        model, fresh, n_eval_episodes=options.evaluate, return_episode_rewards=True
    )
    return float(np.mean(returns)), float(np.std(returns))


def main() -> None:
    """Read the command line, train, print."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--algorithm", choices=tuple(ALGORITHMS), default="ppo")
    options = read_options(__doc__ or "", parents=[parser])
    settings = SETTINGS.get((options.algorithm, options.env))
    if settings is None:
        known = ", ".join(f"{algorithm} in {env}" for algorithm, env in SETTINGS)
        raise SystemExit(f"no settings of {options.algorithm} in {options.env}: there are {known}")
    run(options, settings).print()


if __name__ == "__main__":
    main()
