"""Sample Factory APPO on CartPole-v1, asynchronous as it was made to be, on the CPU.

Two settings. `example` is the command line at the head of `sf_examples/train_gym_env.py` of Sample
Factory 2.1.1. `tuned` takes network, step size, discount, clipping and a like number of optimiser
steps a sample from the settings that RL Baselines3 Zoo has for PPO, and bootstraps at the time
limit: it needs far fewer environment steps. Both run without writing checkpoints and summaries
while they train. Worker and learner processes set one torch thread each by themselves.
"""

from __future__ import annotations

import tempfile

from contest import PeerOptions, PeerResult, SolveDetector, now_s, read_options
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import EPISODIC, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

NEVER_S = 100_000
EXAMPLE = {
    "num_envs_per_worker": "20",
    "policy_workers_per_policy": "2",
    "batch_size": "512",
}
TUNED = {
    "num_workers": "2",
    "num_envs_per_worker": "8",
    "batch_size": "256",
    "num_batches_per_epoch": "2",
    "num_epochs": "8",
    "learning_rate": "1e-3",
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


def make_gym_env(
    name: str, cfg: object, env_config: object, render_mode: str | None = None
) -> object:
    """Make an environment; imported in each worker process by this module's name."""
    import gymnasium as gym

    return gym.make(name, render_mode=render_mode)


class UntilSolved(AlgoObserver):
    """Notes when the criterion is met, then stops the run; stops it at the deadline too."""

    def __init__(self, detector: SolveDetector, deadline_s: float) -> None:
        self._detector = detector
        self._deadline_s = deadline_s
        self.ended_at_s = 0.0
        self.env_steps = 0

    def on_episode(self, runner: Runner, message: dict, policy_id: int) -> None:
        """Take one finished training episode, as the runner hears of it."""
        if not self.ended_at_s and self._detector.add(float(message[EPISODIC]["reward"])):
            self._end(runner)

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Look at the clock after each training iteration."""
        if not self.ended_at_s and now_s() > self._deadline_s:
            self._end(runner)

    def _end(self, runner: Runner) -> None:
        self.ended_at_s = now_s()
        self.env_steps = sum(runner.samples_collected)
        runner._stop_training()


def run(options: PeerOptions) -> PeerResult:
    """Train until solved or out of time."""
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
