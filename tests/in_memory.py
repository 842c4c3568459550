"""Devices and learner in one process, without network or disk: does an algorithm learn, how fast?

    python tests/in_memory.py CartPole-v1 cloud_learner.algorithms.dqn:DQN --set learning_rate=1e-3

Devices act with the published int8 graph exactly as real ones do, and the learner's source and
step are the real ones; only the way between them is left out. All seconds are of processor time,
so that what else the machine does has no say.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from cloud_learner.algorithms.interface import Setup, load_algorithm
from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.quantization.initial import load_weights
from cloud_learner.quantization.quantize import Quantized, Quantizer
from cloud_learner.quantization.sample import probe_sample
from cloud_learner.quantization.session import open_session
from cloud_learner.training.experience import Admitted
from cloud_learner.training.learner import Learner
from cloud_learner.training.publisher import sample_from
from cloud_learner.training.source import Moment, Source, Stepped
from cloud_learner.training.sources import kl_bound, lag_bound, make_source
from shoal.envelope import ChunkKey
from shoal.episodes import Episode
from shoal.layout import ActionLayout, ObservationLayout
from shoal.noise import noise_block
from shoal.policy import ACTION, LOG_PROB, NEXT_STATE, NOISE, OBSERVATION, STATE
from shoal.spaces import Box, Discrete, EnvSpec
from shoal.tensors import Array
from shoal.trajectory import Chunk

Env = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class Acting:
    """A version as devices run it."""

    session: Any
    version: int
    updates: int
    outputs: tuple[str, ...]


def spec_of(env: Env) -> EnvSpec:
    """The spaces of an environment with one Box to observe, and one Box or Discrete to act in."""
    assert isinstance(env.observation_space, gymnasium.spaces.Box)
    observation = Box(env.observation_space.low, env.observation_space.high)
    threshold = env.spec.reward_threshold if env.spec is not None else None
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        return EnvSpec("", observation, Discrete(int(env.action_space.n)), threshold)
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    action = Box(env.action_space.low, env.action_space.high)
    return EnvSpec("", observation, action, threshold)


@dataclass
class Device:
    """Steps its environments with one version at a time."""

    name: str
    envs: list[Env]
    spec: EnvSpec
    seed: int
    step: int = 0
    seq: int = 0
    observations: Array = field(init=False)
    state: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        starts = [env.reset(seed=self.seed * 1000 + n)[0] for n, env in enumerate(self.envs)]
        self.observations = np.stack(starts)
        self.state = np.zeros((len(self.envs), 0), np.float32)
        self.returns = np.zeros(len(self.envs))
        self.lengths = np.zeros(len(self.envs), np.int64)

    def rollout(self, acting: Acting, steps: int) -> Chunk:
        """T steps under one version."""
        count = len(self.envs)
        obs_layout, layout = (
            ObservationLayout.of(self.spec.observation),
            ActionLayout.of(self.spec.action),
        )
        run_id = self.seed.to_bytes(16, "little")
        noise = noise_block(run_id, self.step, steps, count, self.spec.action)
        observations = np.empty((steps + 1, count, *obs_layout.shape), obs_layout.dtype)
        actions = np.empty((steps, count, *layout.shape), layout.dtype)
        log_probs, rewards = np.empty((2, steps, count), np.float32)
        terminated, truncated = np.zeros((2, steps, count), np.bool_)
        finals: list[Array] = []
        episodes: list[Episode] = []
        memory = NEXT_STATE in acting.outputs
        if memory and not self.state.shape[1]:
            width = acting.session.get_inputs()[-1].shape[-1]
            self.state = np.zeros((count, width), np.float32)
        initial_state = self.state.copy() if memory else None
        for t in range(steps):
            observations[t] = self.observations
            feed = {OBSERVATION: observations[t], NOISE: noise[t]}
            if memory:
                feed[STATE] = self.state
            out = dict(
                zip(acting.outputs, acting.session.run(list(acting.outputs), feed), strict=True)
            )
            actions[t], log_probs[t] = out[ACTION], out[LOG_PROB]
            if memory:
                self.state = out[NEXT_STATE].copy()
            for n, env in enumerate(self.envs):
                found, reward, over, cut, _ = env.step(self._to_env(actions[t, n]))
                rewards[t, n] = reward
                self.returns[n] += float(reward)
                self.lengths[n] += 1
                if over or cut:
                    terminated[t, n], truncated[t, n] = over, cut
                    finals.append(np.asarray(found, obs_layout.dtype))
                    episodes.append(Episode(n, t, float(self.returns[n]), int(self.lengths[n])))
                    found = env.reset()[0]
                    self.returns[n], self.lengths[n] = 0.0, 0
                    if memory:
                        self.state[n] = 0.0
                self.observations[n] = found
        observations[steps] = self.observations
        self.step += steps
        return Chunk(
            spec_fingerprint=self.spec.fingerprint,
            policy_version=acting.version,
            policy_digest=bytes(32),
            first_step=self.step - steps,
            observations=observations,
            actions=actions,
            log_probs=log_probs,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            final_index=np.flatnonzero(terminated | truncated).astype(np.int32),
            final_observations=np.array(finals, obs_layout.dtype).reshape(-1, *obs_layout.shape),
            episodes=tuple(episodes),
            initial_state=initial_state,
        )

    def _to_env(self, action: Array) -> object:
        if isinstance(self.spec.action, Discrete):
            return int(action)
        assert isinstance(self.spec.action, Box)
        return np.clip(action, self.spec.action.low, self.spec.action.high)


class InMemory:
    """A whole fleet; devices wait for what the learner publishes when it has nothing to do."""

    def __init__(
        self,
        env_id: str,
        training: TrainingConfig,
        *,
        devices: int = 1,
        envs: int = 8,
        chunk_steps: int = 32,
        seed: int = 0,
        window: int = 100,
        init: bytes | None = None,
    ) -> None:
        torch.set_num_threads(1)
        config = LearnerConfig(
            fleet="memory", identity=Path(), state_dir=Path(), seed=seed, training=training
        )
        self.choice = load_algorithm(training.algorithm, training.settings)
        copies = [[gymnasium.make(env_id) for _ in range(envs)] for _ in range(devices)]
        self.spec = spec_of(copies[0][0])
        self.devices = [
            Device(f"pi-{n}", each, self.spec, seed * 100 + n) for n, each in enumerate(copies)
        ]
        setup = Setup(self.spec, training.network, seed)
        self.learner = Learner(self.choice.build(setup), name=self.choice.path)
        if init is not None:
            load_weights(self.learner.policy, init)
            self.learner.note_given_weights()
        self.quantizer = Quantizer(
            self.learner.policy,
            kl_max=kl_bound(training, self.choice.data),
            dead_zone=training.dead_zone,
        )
        self.source: Source = make_source(
            config, self.choice, version=lambda: self.version, cursor=None
        )
        self._max_lag = lag_bound(training, self.choice.data)
        self._chunk_steps = chunk_steps
        self._sample = probe_sample(self.learner.policy, seed=seed)
        self.version = 0
        self.env_steps = 0
        self.learn_s = 0.0
        self.publish_s = 0.0
        self.window: deque[float] = deque(maxlen=window)
        self.precisions: dict[str, int] = {}
        self.acting = self._publish()
        self._position = 0

    def run(self) -> Iterator[Stepped]:
        """Devices take turns; the learner does all that is due after each round."""
        while True:
            for device in self.devices:
                self._take_in(device)
            stale = False
            while self.source.ready():
                draw = self.source.take(Moment(self.learner.updates, self._max_lag))
                if not draw.work:
                    break
                began_s = time.process_time()
                stepped = self.source.step(self.learner, draw)
                self.learn_s += time.process_time() - began_s
                self._sample = sample_from(self.learner.policy, stepped.experience)
                stale = True
                yield stepped
            if stale:
                self.acting = self._publish()

    @property
    def return_mean(self) -> float:
        """Of the last episodes."""
        return float(np.mean(self.window)) if self.window else float("nan")

    def _take_in(self, device: Device) -> None:
        chunk = device.rollout(self.acting, self._chunk_steps)
        self._position += 1
        self.env_steps += chunk.transitions
        self.window.extend(episode.total_return for episode in chunk.episodes)
        key = ChunkKey(device.name, bytes(16), device.seq)
        device.seq += 1
        self.source.add([Admitted(key, self._position, chunk, self.acting.updates)])

    def note_published(self, quantized: Quantized) -> None:
        """Called with every version; for whoever measures them."""

    def _publish(self) -> Acting:
        began_s = time.process_time()
        quantized = self.quantizer.quantize(self.learner.policy, self._sample)
        session = open_session(self.quantizer.graphs[quantized.precision], quantized.tensors)
        self.publish_s += time.process_time() - began_s
        self.note_published(quantized)
        self.precisions[quantized.precision] = self.precisions.get(quantized.precision, 0) + 1
        self.version += 1
        wanted = [ACTION, LOG_PROB]
        if any(output.name == NEXT_STATE for output in session.get_outputs()):
            wanted.append(NEXT_STATE)
        return Acting(session, self.version, self.learner.updates, tuple(wanted))


def main() -> int:
    """Trains until solved or out of time, and prints the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("algorithm")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--training", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--network", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--chunk-steps", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout-s", type=float, default=120.0, help="of processor time")
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--window", type=int, default=100, help="episodes that the mean is of")
    parser.add_argument("--init", type=Path, help="a policy in fp32, of `shoal learner export`")
    given = parser.parse_args()
    network = _table(given.network)
    if "hidden" in network:
        network["hidden"] = tuple(cast("list[int]", network["hidden"]))
    training = TrainingConfig(
        algorithm=given.algorithm,
        settings=_table(given.set),
        network=NetworkConfig(**network),
        **_table(given.training),
    )
    fleet = InMemory(
        given.env,
        training,
        devices=given.devices,
        envs=given.envs,
        chunk_steps=given.chunk_steps,
        seed=given.seed,
        window=given.window,
        init=None if given.init is None else given.init.read_bytes(),
    )
    threshold = given.threshold if given.threshold is not None else fleet.spec.reward_threshold
    began_s = shown_s = time.process_time()
    solved = False
    stepped = None
    for stepped in fleet.run():
        now_s = time.process_time()
        solved = len(fleet.window) == given.window and fleet.return_mean >= (
            threshold or float("inf")
        )
        if now_s - shown_s > 5.0 or solved or now_s - began_s > given.timeout_s:
            shown_s = now_s
            values = stepped.metrics.values if stepped.metrics is not None else {}
            said = " ".join(f"{name}={value:.3g}" for name, value in sorted(values.items()))
            sys.stdout.write(
                f"{now_s - began_s:6.1f} s  steps {fleet.env_steps:>8,}  updates "
                f"{fleet.learner.updates:>6,}  return {fleet.return_mean:8.2f}  {said}\n"
            )
            sys.stdout.flush()
        if solved or now_s - began_s > given.timeout_s:
            break
    took_s = time.process_time() - began_s
    updates = max(1, fleet.learner.updates)
    sys.stdout.write(
        f"solved={solved} cpu={took_s:.1f}s env_steps={fleet.env_steps:,} updates={updates:,} "
        f"learn={fleet.learn_s:.1f}s ({1e3 * fleet.learn_s / updates:.2f} ms an update) "
        f"publish={fleet.publish_s:.1f}s versions={fleet.version} {fleet.precisions}\n"
    )
    return 0 if solved else 1


def _table(pairs: list[str]) -> dict[str, Any]:
    found: Mapping[str, Any] = tomllib.loads("\n".join(pairs))
    return dict(found)


if __name__ == "__main__":
    sys.exit(main())
