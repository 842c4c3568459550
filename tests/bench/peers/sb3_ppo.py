"""Stable-Baselines3 PPO on CartPole-v1 with the settings of RL Baselines3 Zoo.

Settings: `CartPole-v1` in https://github.com/DLR-RM/rl-baselines3-zoo, `hyperparams/ppo.yml`.
Its budget is 100,000 steps, over which step size and clip range fall linearly to zero. A run that
has not solved by then goes on as Stable-Baselines3 itself continues one
(`learn(..., reset_num_timesteps=False)`): another 100,000 steps on a schedule that falls from
half its start to zero, and so on until the timeout. The note of the result says so.
"""

from __future__ import annotations

import torch
from contest import PeerOptions, PeerResult, SolveDetector, now_s, read_options
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

BUDGET_STEPS = 100_000
IMPORTED_AT_S = now_s()


class UntilSolved(BaseCallback):  # type: ignore[misc]
    """Stops training at the step on which the criterion is met, or at the deadline."""

    def __init__(self, detector: SolveDetector, deadline_s: float) -> None:
        super().__init__()
        self._detector = detector
        self._deadline_s = deadline_s
        self.stopped = False

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info and self._detector.add(float(info["episode"]["r"])):
                self.stopped = True
                return False
        self.stopped = now_s() > self._deadline_s
        return not self.stopped


def run(options: PeerOptions) -> PeerResult:
    """Train until solved or out of time."""
    if options.threads:
        torch.set_num_threads(options.threads)
    detector = SolveDetector(options.threshold)
    until_solved = UntilSolved(detector, now_s() + options.timeout_s)
    model = PPO(
        "MlpPolicy",
        make_vec_env(options.env, n_envs=8, seed=options.seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        seed=options.seed,
        device="cpu",
    )
    legs = 0
    while not until_solved.stopped:
        model.learn(BUDGET_STEPS, callback=until_solved, reset_num_timesteps=legs == 0)
        legs += 1
    return PeerResult(
        solved=detector.solved,
        imported_at_s=IMPORTED_AT_S,
        ended_at_s=now_s(),
        env_steps=model.num_timesteps,
        episodes=detector.episodes,
        return_mean=detector.mean,
        note="" if legs == 1 else f"past its {BUDGET_STEPS} steps: continued {legs - 1} time(s)",
    )


if __name__ == "__main__":
    run(read_options(__doc__)).print()
