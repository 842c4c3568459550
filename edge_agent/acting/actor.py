"""The actor: steps the environments with one policy and returns chunks.

It never trains and does no I/O beyond the environments. The policy is an argument of each rollout,
so a chunk has one version and a swap needs no lock.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_agent.acting.priorities import td_errors
from edge_agent.acting.safe_action import safe_actions
from edge_agent.environments.env import Environments, Step
from edge_agent.policies.binding import Binding
from edge_agent.policies.policy import Policy
from shoal.episodes import Episode
from shoal.errors import PolicyRejected, ShoalError
from shoal.layout import ActionLayout, ObservationLayout
from shoal.noise import noise_block
from shoal.spaces import EnvSpec
from shoal.tensors import Array
from shoal.trajectory import Chunk

SAFE_STEP_S = 0.001
"""What a safe step waits for where no rate is set: nothing of it is recorded, and a loop that never
lets go of the interpreter starves the threads that would bring the first policy."""


class RolloutStopped(ShoalError):
    """The process is ending; the steps of the chunk in progress are not recorded."""


class Clock(Protocol):
    """Monotonic time; a simulated one drives the tests."""

    def now(self) -> float:
        """Seconds since some fixed moment."""

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return after `seconds`, or at once when `stop` is set."""


class MonotonicClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return after `seconds`, or at once when `stop` is set."""
        stop.wait(seconds)


@dataclass(frozen=True, slots=True)
class Control:
    """How the control loop runs.

    Attributes:
        hz: Steps a second, by absolute deadlines; None steps as fast as it can.
        safe_action: The action of one environment where no policy acts, as numbers in the
            environment's own terms, leaf after leaf. None is the first of what is discrete, and
            zero brought within the bounds of a Box.
    """

    hz: float | None = None
    safe_action: Sequence[float] | None = None


@dataclass(slots=True)
class Counters:
    """What an actor did in this run: written by the control thread, read by any.

    Attributes:
        envs: N.
        vector_steps: Steps of all environments together, recorded or not.
        episodes: Episodes that ended.
        deadline_misses: Deadlines that passed before their step began.
        non_finite: Rollouts given up because the policy gave NaN or infinity.
    """

    envs: int
    vector_steps: int = 0
    episodes: int = 0
    deadline_misses: int = 0
    non_finite: int = 0

    @property
    def env_steps(self) -> int:
        """Transitions, all environments."""
        return self.vector_steps * self.envs


class Actor:
    """Steps environments and records what happened.

    actor = Actor(environments, run_id=run_id, chunk_steps=64)
    chunk = actor.rollout(policy)
    """

    def __init__(
        self,
        environments: Environments,
        *,
        run_id: bytes,
        chunk_steps: int,
        control: Control | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Resets the environments.

        Args:
            environments: Who steps; the caller closes them.
            run_id: 16 bytes; keys the sampling noise.
            chunk_steps: T.
            control: Rate and safe action.
            clock: The machine's own, unless a test says otherwise.

        Raises:
            ConfigError: The safe action is not one of the action space.
            EnvironmentFault: An environment cannot be reset.
        """
        control = control or Control()
        self.counters = Counters(environments.num_envs)
        self._environments = environments
        self._spec: EnvSpec = environments.spec
        self._run_id = run_id
        self._steps = chunk_steps
        self._safe = safe_actions(self._spec.action, control.safe_action, environments.num_envs)
        self._schedule = (
            None if control.hz is None else _Schedule(control.hz, clock or MonotonicClock())
        )
        self._layout = ObservationLayout.of(self._spec.observation)
        self._action = ActionLayout.of(self._spec.action)
        self._unstopped = threading.Event()
        self._bound: tuple[Policy, Binding] | None = None
        self._observation: Array = environments.reset()  # one array, which each step fills anew

    def rollout(self, policy: Policy, stop: threading.Event | None = None) -> Chunk:
        """Steps T times with one policy.

        Args:
            policy: Acts in every step of the chunk.
            stop: When set, the rollout ends before its next step.

        Raises:
            PolicyRejected: With the reason `non_finite`: the policy gave NaN or infinity. Nothing
                of that reached an environment; the steps before it are not recorded. Act on with
                another policy, or with `safe_steps`.
            RolloutStopped: `stop` was set.
            EnvironmentFault: An environment raised or broke its contract.
        """
        stop = stop or self._unstopped
        counters, environments, schedule = self.counters, self._environments, self._schedule
        first_step = counters.vector_steps
        binding = self._bind(policy)
        columns = _Columns(self._layout, self._action, self._steps, environments.num_envs)
        columns.begin(binding, policy)
        noise = noise_block(
            self._run_id,
            first_step,
            self._steps,
            environments.num_envs,
            self._spec.action,
            policy.manifest.noise_correlation,
        )
        observation, action, memory = self._observation, binding.action, policy.memory
        for t in range(self._steps):
            if stop.is_set():
                raise RolloutStopped("the rollout was stopped; its steps are not recorded")
            if schedule is not None:
                counters.deadline_misses += schedule.wait(stop)
            columns.observations[t] = observation
            binding.noise[...] = noise[t]
            self._decide(policy, binding)
            columns.actions[t] = action
            columns.log_probs[t] = binding.log_prob
            if columns.values is not None:
                columns.values[t] = binding.values
            step = environments.step(action)
            counters.vector_steps += 1
            columns.rewards[t] = step.rewards
            if memory:
                binding.state[...] = binding.next_state
            if step.endings:
                columns.end(t, step)
                counters.episodes += len(step.endings)
                if memory:
                    binding.state[[ending.env for ending in step.endings]] = 0.0
        columns.observations[self._steps] = observation
        if columns.values is not None:
            # What the last observation is worth, by a run that nobody acts on.
            self._decide(policy, binding)
            columns.values[self._steps] = binding.values
        return columns.chunk(policy, self._spec.fingerprint, first_step)

    def enter(self, environments: Environments) -> None:
        """Goes on in other environments, between two rollouts: each with a new episode.

        Args:
            environments: As many, of the same spaces; the caller closes them and those before.

        Raises:
            EnvironmentFault: One of them cannot be reset.
        """
        self._environments = environments
        self._bound = None  # what a policy remembers is of the episodes before
        self._observation = environments.reset()

    def safe_steps(self, steps: int, stop: threading.Event | None = None) -> None:
        """Steps with the safe action; nothing is recorded but the counters.

        A policy that acts afterwards remembers nothing of what was before.

        Args:
            steps: How often.
            stop: When set, ends before the next step.

        Raises:
            EnvironmentFault: An environment raised or broke its contract.
        """
        stop = stop or self._unstopped
        if self._bound is not None:
            self._bound[1].state[...] = 0.0
        for _ in range(steps):
            if stop.is_set():
                return
            if self._schedule is not None:
                self.counters.deadline_misses += self._schedule.wait(stop)
            else:
                stop.wait(SAFE_STEP_S)
            step = self._environments.step(self._safe)
            self.counters.vector_steps += 1
            self.counters.episodes += len(step.endings)

    def _decide(self, policy: Policy, binding: Binding) -> None:
        binding.run()
        if not binding.finite():
            self.counters.non_finite += 1
            raise PolicyRejected(
                "non_finite",
                f"policy {policy.version} gave NaN or infinity; nothing acted on it",
            )

    def _bind(self, policy: Policy) -> Binding:
        before = self._bound
        if before is not None and before[0] is policy and before[1].session is policy.session:
            return before[1]  # else it is another, or decides faster by now
        binding = Binding(policy, self._observation)
        if before is not None and before[0].memory == policy.memory:
            binding.state[...] = before[1].state  # an episode goes on under the next version
        self._bound = (policy, binding)
        return binding


class _Schedule:
    """Absolute deadlines: the n-th is `origin + n / hz`, so that delays do not add up."""

    def __init__(self, hz: float, clock: Clock) -> None:
        self._hz = hz
        self._clock = clock
        self._origin: float | None = None
        self._next = 0

    def wait(self, stop: threading.Event) -> int:
        """Waits for the next deadline; returns how many had passed already."""
        now = self._clock.now()
        if self._origin is None:
            self._origin = now
        due = self._origin + self._next / self._hz
        if now <= due:
            if now < due:
                self._clock.wait(due - now, stop)
            self._next += 1
            return 0
        # Late: step now, and again at the first deadline still to come; never in a burst.
        missed = math.floor((now - due) * self._hz) + 1
        self._next += missed
        return missed


class _Columns:
    """The arrays of a chunk in the making; the chunk takes them over."""

    def __init__(
        self, observation: ObservationLayout, action: ActionLayout, steps: int, envs: int
    ) -> None:
        self.observations: Array = np.empty(
            (steps + 1, envs, *observation.shape), observation.dtype
        )
        self.actions: Array = np.empty((steps, envs, *action.shape), action.dtype)
        self.log_probs: NDArray[np.float32] = np.empty((steps, envs), np.float32)
        self.rewards: NDArray[np.float32] = np.empty((steps, envs), np.float32)
        self.terminated: NDArray[np.bool_] = np.zeros((steps, envs), np.bool_)
        self.truncated: NDArray[np.bool_] = np.zeros((steps, envs), np.bool_)
        self.values: NDArray[np.float32] | None = None
        self._initial_state: NDArray[np.float32] | None = None
        self._episodes: list[Episode] = []
        self._final_index: list[int] = []
        self._finals: list[Array] = []
        self._envs = envs

    def begin(self, binding: Binding, policy: Policy) -> None:
        """What a policy remembers before the first step, and room for its Q-values."""
        if policy.memory:
            self._initial_state = binding.state.copy()
        if binding.values is not None:
            self.values = np.empty((len(self.observations), *binding.values.shape), np.float32)

    def end(self, t: int, step: Step) -> None:
        self.terminated[t] = step.terminated
        self.truncated[t] = step.truncated
        for ending in step.endings:
            self._episodes.append(Episode(ending.env, t, ending.total_return, ending.length))
            self._final_index.append(t * self._envs + ending.env)
            self._finals.append(ending.final_observation)

    def chunk(self, policy: Policy, fingerprint: bytes, first_step: int) -> Chunk:
        finals: Array = np.empty(
            (len(self._finals), *self.observations.shape[2:]), self.observations.dtype
        )
        for k, final in enumerate(self._finals):
            finals[k] = final
        chunk = Chunk(
            spec_fingerprint=fingerprint,
            policy_version=policy.version,
            policy_digest=policy.digest,
            first_step=first_step,
            observations=self.observations,
            actions=self.actions,
            log_probs=self.log_probs,
            rewards=self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            final_index=np.array(self._final_index, np.int32),
            final_observations=finals,
            episodes=tuple(self._episodes),
            initial_state=self._initial_state,
        )
        if self.values is None:
            return chunk
        gamma = policy.manifest.priority_gamma
        return replace(chunk, priorities=td_errors(self.values, chunk, gamma))
