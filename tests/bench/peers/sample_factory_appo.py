"""Sample Factory APPO on CartPole-v1, on the CPU.

Two settings. `example` is the command line at the head of `sf_examples/train_gym_env.py` of Sample
Factory 2.1.1: asynchronous, its parts in processes of their own. `tuned` is the fastest by
wall-clock of those tried on two cores. There the asynchronous processes lose to Sample Factory's
own serial mode: they start some 3 s later, and messages between them cost more than a network this
small. So `tuned` runs in one process, takes turns at acting and training, and samples in batches
(`batched_sampling`): 32 ordinary environments offered as one of 32 agents. Network, discount,
lambda and clipping are those that RL Baselines3 Zoo has for PPO; the step is three times as long,
for 4 epochs in place of 20. It bootstraps at the time limit.

Both run without writing checkpoints and summaries while they train, and with one torch thread a
process: worker, inference and learner processes of `example` see to that by themselves, and for the
one process of `tuned` it is set here, for with two it comes to a crawl beside any other load.
"""

from __future__ import annotations

import tempfile

import gymnasium as gym
import numpy as np
import torch
from contest import PeerOptions, PeerResult, SolveDetector, now_s, read_options
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import EPISODIC, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sample_factory.utils.typing import Config

NEVER_S = 100_000
EXAMPLE = {
    "num_envs_per_worker": "20",
    "policy_workers_per_policy": "2",
    "batch_size": "512",
}
BATCH_ENVS = 32
TUNED = {
    "serial_mode": "True",
    "async_rl": "False",
    "batched_sampling": "True",
    "num_workers": "1",
    "num_envs_per_worker": "1",
    "worker_num_splits": "1",
    "batch_size": "256",
    "num_batches_per_epoch": "4",
    "num_epochs": "4",
    "learning_rate": "3e-3",
    "gamma": "0.98",
    "gae_lambda": "0.8",
    "ppo_clip_ratio": "0.2",
    "exploration_loss_coeff": "0.0",
    "value_bootstrap": "True",
    "encoder_mlp_layers": "64 64",
    "nonlinearity": "tanh",
}
SETTINGS = {"tuned": TUNED, "example": EXAMPLE}
COMMON = {
    "algo": "APPO",
    "use_rnn": "False",
    "recurrence": "1",
    "with_vtrace": "False",
    "reward_scale": "0.1",
    "device": "cpu",
    "experiment": "learn",
    "log_to_file": "False",
    "save_every_sec": str(NEVER_S),
    "save_best_every_sec": str(NEVER_S),
    "experiment_summaries_interval": str(NEVER_S),
}
IMPORTED_AT_S = now_s()


class GymBatch(gym.Env):
    """Environments stepped in turn, as one of so many agents: what batched sampling asks for.

    Each starts anew by itself when its episode ends, as Sample Factory expects of such a batch.
    """

    is_multiagent = True

    def __init__(self, name: str, num: int, first_seed: int) -> None:
        self.num_agents = num
        self._envs = [gym.make(name) for _ in range(num)]
        self._first_seed = first_seed
        self._infos: list[dict] = [{} for _ in range(num)]
        self.observation_space = self._envs[0].observation_space
        self.action_space = self._envs[0].action_space

    def reset(self, **_: object) -> tuple[np.ndarray, list[dict]]:
        """Start all."""
        seeded = enumerate(self._envs, self._first_seed)
        return np.stack([env.reset(seed=seed)[0] for seed, env in seeded]), self._infos

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[dict]]:
        """Advance each by its action."""
        num = self.num_agents
        obs = np.empty((num, *self.observation_space.shape), self.observation_space.dtype)
        rewards = np.empty(num, np.float32)
        terminated, truncated = np.empty(num, bool), np.empty(num, bool)
        for i, (env, action) in enumerate(zip(self._envs, actions.tolist(), strict=True)):
            obs[i], rewards[i], terminated[i], truncated[i], _ = env.step(action)
            if terminated[i] or truncated[i]:
                obs[i], _ = env.reset()
        return obs, rewards, terminated, truncated, self._infos

    def close(self) -> None:
        """Close all."""
        for env in self._envs:
            env.close()


def make_gym_env(
    name: str, cfg: Config, env_config: object, render_mode: str | None = None
) -> gym.Env:
    """Make an environment; imported in each worker process by this module's name."""
    if cfg.batched_sampling:
        return GymBatch(name, BATCH_ENVS, 1000 * cfg.seed)
    return gym.make(name, render_mode=render_mode)


class UntilSolved(AlgoObserver):
    """Notes when the criterion is met, then stops the run; stops it at the deadline too."""

    def __init__(self, detector: SolveDetector, deadline_s: float) -> None:
        self._detector = detector
        self._deadline_s = deadline_s
        self.ended_at_s = 0.0
        self.env_steps = 0
        self._steps_of_episodes = 0

    def on_episode(self, runner: Runner, message: dict, policy_id: int) -> None:
        """Take finished training episodes, as the runner hears of them: one, or some of a batch."""
        said = message[EPISODIC]
        for reward, steps in zip(np.ravel(said["reward"]), np.ravel(said["len"]), strict=True):
            if self.ended_at_s:
                return
            self._steps_of_episodes += int(steps)
            if self._detector.add(float(reward)):
                self._end(runner)

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Look at the clock after each training iteration."""
        if not self.ended_at_s and now_s() > self._deadline_s:
            self._end(runner)

    def _end(self, runner: Runner) -> None:
        self.ended_at_s = now_s()
        # The runner hears of samples every 3 s only; episodes lack those that still run.
        self.env_steps = max(sum(runner.samples_collected), self._steps_of_episodes)
        runner._stop_training()


def run(options: PeerOptions) -> PeerResult:
    """Train until solved or out of time."""
    torch.set_num_threads(1)
    register_env(options.env, make_gym_env)
    detector = SolveDetector(options.threshold)
    until_solved = UntilSolved(detector, now_s() + options.timeout_s)
    with tempfile.TemporaryDirectory() as train_dir:
        flags = {**COMMON, **SETTINGS[options.settings], "train_dir": train_dir}
        flags |= {"env": options.env, "seed": str(options.seed)}
        argv = [word for name, value in flags.items() for word in (f"--{name}", *value.split())]
        parser, _ = parse_sf_args(argv=argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.register_observer(until_solved)
        runner.register_episodic_stats_handler(until_solved.on_episode)
        if runner.init() == ExperimentStatus.SUCCESS:
            runner.run()
    return PeerResult(
        solved=detector.solved,
        imported_at_s=IMPORTED_AT_S,
        ended_at_s=until_solved.ended_at_s or now_s(),
        env_steps=until_solved.env_steps,
        episodes=detector.episodes,
        return_mean=detector.mean,
        note="",
    )


if __name__ == "__main__":
    run(read_options(__doc__, tuple(SETTINGS))).print()
