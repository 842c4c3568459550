"""Tasks on a device: one environment after the other, and every chunk is of one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.acting.actor import Actor
from edge_agent.config import DispatchConfig, EnvConfig
from edge_agent.dispatch.dispatch import Left, Task
from edge_agent.dispatch.workplace import Workplace, is_done
from edge_agent.environments.env import EnvironmentFault, make_env
from edge_agent.events import Events
from edge_agent.policies.policy import Policy
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk

RUN = bytes(16)
T, N = 8, 2
OPEN: list[gymnasium.Env[Any, Any]] = []


class Brittle(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that breaks after some steps, or at its first reset."""

    def __init__(self, breaks_after: int = 1_000_000) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self.left = breaks_after
        OPEN.append(self)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 - as inherited
        if self.left == 0:
            raise RuntimeError("no rail")
        return self.env.reset(**kwargs)

    def step(  # as inherited
        self,
        action: Any,  # noqa: ANN401
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the rail broke")
        return self.env.step(action)

    def close(self) -> None:
        OPEN.remove(self)
        super().close()


BRITTLE = f"{__name__}:Brittle"


@dataclass
class Desk:
    """Hands out what the test put there, and keeps what it was told."""

    tasks: list[Task]
    asked: list[Left | None] = field(default_factory=list)
    gap_ms: float = 1.5

    def ask(self, left: Left | None) -> None:
        self.asked.append(left)

    def take(self, timeout_s: float) -> Task | None:
        return self.tasks.pop(0) if self.tasks else None


def task(task_id: int = 1, **values: object) -> Task:
    given: dict[str, object] = {
        "task_id": task_id,
        "name": "pole",
        "env_id": "",
        "env_kwargs": {},
        "seed": 3,
        "max_episodes": 0,
        "max_steps": 2 * T * N,
    }
    return Task(**(given | values))  # type: ignore[arg-type]


@dataclass
class World:
    """A device's parts."""

    actor: Actor
    spec: EnvSpec
    policy: Policy
    events: Events

    def workplace(self, desk: Desk, *env_ids: str) -> Workplace:
        env = EnvConfig("CartPole-v1", num_envs=N)
        config = DispatchConfig(enabled=True, env_ids=env_ids)
        return Workplace(desk, self.actor, self.spec, env, config, self.events)

    def act(self, workplace: Workplace) -> Chunk:
        chunk = self.actor.rollout(self.policy, threading.Event())
        workplace.note(chunk)
        return chunk


@pytest.fixture
def world(make_publisher: Callable[..., Any]) -> Iterator[World]:
    with make_env(EnvConfig("CartPole-v1", num_envs=N, seed=1)) as envs:
        policy = make_publisher(fleet="demo", spec=envs.spec).policy(1)
        actor = Actor(envs, run_id=RUN, chunk_steps=T)
        yield World(actor, envs.spec, policy, Events("pi-1", RUN, clock=lambda: 0.0))
    assert not OPEN


def test_acts_until_the_task_is_done_and_takes_the_next(world: World) -> None:
    desk = Desk([task(1), task(2, max_steps=1)])
    with world.workplace(desk) as workplace:
        chunks: list[Chunk] = []
        while workplace.ready():
            chunks.append(world.act(workplace))
    assert len(chunks) == 3
    assert [chunk.first_step for chunk in chunks] == [0, T, 2 * T]
    assert desk.asked[0] is None
    done = [left for left in desk.asked[1:] if left is not None]
    assert [(left.task_id, left.steps, left.failed) for left in done] == [
        (1, 2 * T * N, ""),
        (2, T * N, ""),
    ]
    episodes = [episode for chunk in chunks[:2] for episode in chunk.episodes]
    assert done[0].episodes == len(episodes)


def test_what_was_asked_for_is_asked_for_once(world: World) -> None:
    desk = Desk([])
    with world.workplace(desk) as workplace:
        for _ in range(3):
            assert not workplace.ready()
        assert desk.asked == [None]
        desk.tasks.append(task(1))
        assert workplace.ready()
        assert workplace.ready()
        assert desk.asked == [None]


def test_a_seed_gives_the_same_beginning_and_another_another(world: World) -> None:
    desk = Desk([task(n, seed=seed, max_steps=1) for n, seed in enumerate((3, 3, 4), start=1)])
    firsts = []
    with world.workplace(desk) as workplace:
        while workplace.ready():
            firsts.append(world.act(workplace).observations[0].tobytes())
    assert firsts[0] == firsts[1]
    assert firsts[0] != firsts[2]


def test_an_environment_that_was_not_allowed_is_not_even_made(world: World) -> None:
    desk = Desk([task(1, env_id=BRITTLE)])
    with world.workplace(desk) as workplace:
        assert not workplace.ready()
        assert workplace.task is None
    (left,) = [left for left in desk.asked if left is not None]
    assert (left.task_id, left.steps) == (1, 0)
    assert "dispatch.env_ids" in left.failed


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"env_id": "Acrobot-v1"}, "other spaces"),
        ({"env_id": BRITTLE, "env_kwargs": {"breaks_after": 0}}, "no rail"),
        ({"env_id": BRITTLE, "env_kwargs": {"wings": 2}}, "wings"),
        ({"env_id": "Nowhere-v0"}, "unknown environment"),
        ({"seed": 2**40}, "seed"),
    ],
)
def test_a_task_that_cannot_be_begun_is_left_with_the_reason(
    world: World, values: dict[str, Any], why: str
) -> None:
    desk = Desk([task(1, **values), task(2)])
    with world.workplace(desk, "Acrobot-v1", BRITTLE, "Nowhere-v0") as workplace:
        assert not workplace.ready()
        (left,) = [left for left in desk.asked if left is not None]
        assert left.task_id == 1
        assert why in left.failed
        assert workplace.ready()  # and the next is taken as if nothing had been
        world.act(workplace)


def test_an_environment_that_breaks_ends_its_task_and_not_the_agent(world: World) -> None:
    desk = Desk([task(1, env_id=BRITTLE, env_kwargs={"breaks_after": T + 2}), task(2)])
    with world.workplace(desk, BRITTLE) as workplace:
        assert workplace.ready()
        world.act(workplace)
        with pytest.raises(EnvironmentFault) as caught:
            world.actor.rollout(world.policy, threading.Event())
        workplace.fail(caught.value)
        (left,) = [left for left in desk.asked if left is not None]
        assert (left.steps, left.failed) == (T * N, str(caught.value))
        assert "the rail broke" in left.failed
        assert workplace.ready()
        assert world.act(workplace).first_step > T


@given(st.integers(0, 5), st.integers(0, 50), st.integers(0, 9), st.integers(0, 90))
def test_a_task_ends_with_whichever_comes_first(
    max_episodes: int, max_steps: int, episodes: int, steps: int
) -> None:
    asked = task(max_episodes=max_episodes, max_steps=max_steps)
    reached = (max_episodes and episodes >= max_episodes) or (max_steps and steps >= max_steps)
    assert is_done(asked, episodes=episodes, steps=steps) == bool(reached)
