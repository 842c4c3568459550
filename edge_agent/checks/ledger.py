"""What an environment itself saw: every step, reset and end, beside what a loop records of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from edge_agent.checks.trial import call
from edge_agent.environments.env import Copy
from edge_agent.environments.gym_spaces import to_space
from edge_agent.environments.rows import Rows


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that ended.

    Attributes:
        length: its steps.
        total_return: sum of its raw rewards.
        terminated: as the last step said.
        truncated: likewise.
        last: its true last observation, a row's bytes.
        next_first: the first observation of the next one.
    """

    length: int
    total_return: float
    terminated: bool
    truncated: bool
    last: bytes
    next_first: bytes


class Ledger(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that keeps count of what is done to it.

    ledger = Ledger(env)
    ...                       # any loop over it
    ledger.steps, ledger.episodes
    """

    def __init__(self, env: Copy) -> None:
        super().__init__(env)
        self.steps = 0
        self.episodes: list[Episode] = []
        self._done: list[tuple[str, Any]] = []  # "reset" and seed, or "step" and action
        self._rows = Rows(to_space(env.observation_space), 1)
        self._length, self._return = 0, 0.0
        self._ended: tuple[bool, bool, bytes] | None = None

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode, and closes the book of the one before."""
        self._done.append(("reset", seed))
        given: Any = self.env.reset(seed=seed)
        if self._ended is not None:
            terminated, truncated, last = self._ended
            self.episodes.append(
                Episode(
                    self._length, self._return, terminated, truncated, last, self._row(given[0])
                )
            )
        self._length, self._return, self._ended = 0, 0.0, None
        return given  # type: ignore[no-any-return] # whatever it is

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """One step."""
        self._done.append(("step", copy.deepcopy(action)))
        given: Any = self.env.step(action)
        self.steps += 1
        self._length += 1
        self._return += float(given[1])
        if given[2] or given[3]:
            self._ended = (bool(given[2]), bool(given[3]), self._row(given[0]))
        return given  # type: ignore[no-any-return] # whatever it is

    def replay(self) -> Sequence[Episode]:
        """The episodes of a bare loop that does the same again.

        Raises:
            EnvironmentFault: the environment raised.
        """
        again = Ledger(self.env)
        for what, value in self._done:
            if what == "reset":
                call(what, again.reset, seed=value)
            else:
                call(what, again.step, value)
        return again.episodes

    def _row(self, observation: object) -> bytes:
        self._rows.put(0, observation)
        return self._rows.array.tobytes()
