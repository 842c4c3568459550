"""Where a device acts while tasks are handed to it: one environment after the other.

Only the control thread is here. Between two chunks it enters a task's environment, counts what the
task asks for, and leaves: a chunk is always of one environment, and numbers go on as in any run.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Protocol, Self

from edge_agent.acting.actor import Actor
from edge_agent.config import DispatchConfig, EnvConfig
from edge_agent.dispatch.dispatch import Left, Task
from edge_agent.environments.env import Environments, make_env
from edge_agent.events import Events
from shoal.errors import ConfigError, EnvironmentFailed
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk
from shoal.v1 import device_pb2 as pb

STOP_CHECK_S: Final = 0.25
"""How soon a control thread without a task notices that the process stops."""


class Desk(Protocol):
    """Who hands tasks out; `edge_agent.dispatch.dispatch.Dispatch` is one.

    Attributes:
        gap_ms: How long the last answer took.
    """

    gap_ms: float

    def ask(self, left: Left | None) -> None:
        """Says what is left, and asks for the next."""

    def take(self, timeout_s: float) -> Task | None:
        """The task that was answered, once."""


class Workplace:
    """The task in hand and its environments.

    with Workplace(desk, actor, spec, config.env, config.dispatch, events) as workplace:
        if workplace.ready():
            workplace.note(actor.rollout(policy, stop))
    """

    def __init__(
        self,
        desk: Desk,
        actor: Actor,
        spec: EnvSpec,
        env: EnvConfig,
        config: DispatchConfig,
        events: Events,
    ) -> None:
        """Has nothing in hand.

        Args:
            desk: Where tasks come from.
            actor: Who enters their environments.
            spec: The spaces they must have.
            env: The device's own environment: what a task leaves out.
            config: Which environments a task may name.
            events: Where it is told what was begun and what failed.
        """
        self._desk = desk
        self._actor = actor
        self._spec = spec
        self._env = env
        self._config = config
        self._events = events
        self._task: Task | None = None
        self._environments: Environments | None = None
        self._asked = False
        self._steps = self._episodes = 0
        self._return = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes what is open."""
        self._close()

    @property
    def task(self) -> Task | None:
        """What is in hand."""
        return self._task

    def ready(self) -> bool:
        """Whether there is a task to act in; waits a moment for one if there is none."""
        if self._task is not None:
            return True
        if not self._asked:
            self._ask(None)
        task = self._desk.take(STOP_CHECK_S)
        if task is None:
            return False
        self._asked = False
        try:
            self._enter(task)
        except (EnvironmentFailed, ConfigError) as error:
            self._fail(task, str(error))
            return False
        self._task = task
        self._events.emit(
            pb.SEVERITY_INFO,
            "task_begun",
            f"task {task.task_id} ({task.name}); there was none for {self._desk.gap_ms:.0f} ms",
            task_id=task.task_id,
            gap_ms=round(self._desk.gap_ms, 3),
        )
        return True

    def note(self, chunk: Chunk) -> None:
        """Counts a chunk; leaves the task when that was its last."""
        task = self._task
        if task is None:
            return
        self._steps += chunk.transitions
        self._episodes += len(chunk.episodes)
        self._return += sum(episode.total_return for episode in chunk.episodes)
        if is_done(task, episodes=self._episodes, steps=self._steps):
            mean = self._return / self._episodes if self._episodes else 0.0
            self._ask(
                Left(task.task_id, episodes=self._episodes, steps=self._steps, return_mean=mean)
            )

    def fail(self, error: EnvironmentFailed) -> None:
        """The environment broke: somebody else may do better."""
        if self._task is not None:
            self._fail(self._task, str(error))

    def _enter(self, task: Task) -> None:
        self._steps = self._episodes = 0
        self._return = 0.0
        env_id = task.env_id or self._env.id
        if env_id != self._env.id and env_id not in self._config.env_ids:
            raise EnvironmentFailed(
                f"this device may not step {env_id!r}: add it to dispatch.env_ids in its agent.toml"
            )
        config = EnvConfig(
            id=env_id,
            num_envs=self._env.num_envs,
            seed=task.seed,
            kwargs={**self._env.kwargs, **task.env_kwargs},
        )
        self._close()
        environments = make_env(config)
        if environments.spec.fingerprint != self._spec.fingerprint:
            environments.close()
            raise EnvironmentFailed(
                f"{env_id} with {task.env_kwargs} has other spaces than {self._spec.env_id}, which "
                "this fleet trains for"
            )
        self._environments = environments
        self._actor.enter(environments)

    def _fail(self, task: Task, reason: str) -> None:
        self._events.emit(
            pb.SEVERITY_WARNING,
            "task_failed",
            f"task {task.task_id} ({task.name}): {reason}",
            task_id=task.task_id,
        )
        self._ask(
            Left(
                task.task_id, failed=reason or "failed", episodes=self._episodes, steps=self._steps
            )
        )

    def _ask(self, left: Left | None) -> None:
        self._task, self._asked = None, True
        self._desk.ask(left)

    def _close(self) -> None:
        if self._environments is not None:
            self._environments.close()
            self._environments = None


def is_done(task: Task, *, episodes: int, steps: int) -> bool:
    """Whether a task has what it asks for; looked at between chunks, so it may have a bit more."""
    enough_episodes = 0 < task.max_episodes <= episodes
    return enough_episodes or 0 < task.max_steps <= steps
