"""How actor and critic see a batch: step by step, or lane by lane where the policy remembers.

Without memory every transition is a row of its own. With memory a row is a whole lane of the batch:
it is unrolled again from the state that the device had when the chunk began, and the first
`burn_in` steps only warm that state up (Kapturowski et al. 2019, "Recurrent experience replay in
distributed reinforcement learning").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cloud_learner.algorithms.arrays import tensor
from cloud_learner.models.actor_critic import ActorCritic
from cloud_learner.training.experience import Batch

Columns = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the networks say of a batch.

    Attributes:
        params: `[T, B, P]` of the action distribution.
        values: `[T, B]`.
        next_values: `[T, B]` of what followed: the next observation, or the true final one.
    """

    params: Tensor
    values: Tensor
    next_values: Tensor


class ActorCriticView(Protocol):
    """Stateless; the two kinds of it are below."""

    def look(self, batch: Batch) -> Seen:
        """One pass over a batch, all T steps of it."""

    def trained(self, column: Tensor) -> Tensor:
        """The steps of a column `[T, ...]` that are trained from."""

    def columns(self, batch: Batch, by_step: Columns) -> Columns:
        """Lays out trained steps `[T', B, ...]`, and what `again` needs, as rows."""

    def again(self, columns: Columns) -> tuple[Tensor, Tensor]:
        """Parameters and values of some rows, with gradients."""

    def params_again(self, columns: Columns) -> Tensor:
        """Parameters of some rows."""


def actor_critic_view(model: ActorCritic, *, burn_in: int) -> ActorCriticView:
    """The view that fits a model."""
    return ByLane(model, burn_in) if model.policy.state_width else ByStep(model)


class ByStep:
    """Rows are transitions, R = T * B."""

    def __init__(self, model: ActorCritic) -> None:
        self._model = model

    def look(self, batch: Batch) -> Seen:
        """One pass over a batch."""
        model, observations = self._model, tensor(batch.observations)
        values = model.value(observations, None)
        next_values = values[1:].clone()
        if batch.final_index.size:
            index = tensor(batch.final_index.astype(np.int64))
            next_values.view(-1)[index] = model.value(tensor(batch.final_observations), None)
        return Seen(model.policy(observations[:-1]), values[:-1], next_values)

    def trained(self, column: Tensor) -> Tensor:
        """All of it."""
        return column

    def columns(self, batch: Batch, by_step: Columns) -> Columns:
        """Rows in the order of steps, then lanes."""
        laid = {"observations": tensor(batch.observations)[:-1], **by_step}
        return {name: column.flatten(0, 1) for name, column in laid.items()}

    def again(self, columns: Columns) -> tuple[Tensor, Tensor]:
        """Parameters `[R, P]` and values `[R]`."""
        observations = columns["observations"]
        return self._model.policy(observations), self._model.value(observations, None)

    def params_again(self, columns: Columns) -> Tensor:
        """Parameters `[R, P]`."""
        params: Tensor = self._model.policy(columns["observations"])
        return params


class ByLane:
    """Rows are lanes, R = B; everything else about a step is an axis of the row."""

    def __init__(self, model: ActorCritic, burn_in: int) -> None:
        self._model = model
        self._burn_in = burn_in

    def look(self, batch: Batch) -> Seen:
        """Unrolls the whole batch, and one step beyond each end of an episode."""
        model, policy = self._model, self._model.policy
        observations = tensor(batch.observations)
        starts = torch.cat((tensor(batch.starts), tensor(batch.ended[-1:])))
        unrolled = policy.unroll(observations, tensor(batch.initial_state), starts)
        values = model.value(observations, unrolled.memory)
        next_values = values[1:].clone()
        if batch.final_index.size:
            # A final observation is seen with the memory of its own episode, which the next one no
            # longer has: the last step is made again, and one more from there.
            step, lane = map(tensor, np.divmod(batch.final_index.astype(np.int64), starts.shape[1]))
            onward = torch.zeros(1, len(step), dtype=torch.bool)
            last = policy.unroll(
                observations[step, lane].unsqueeze(0), unrolled.states[step, lane], onward
            )
            finals = tensor(batch.final_observations).unsqueeze(0)
            beyond = policy.unroll(finals, last.state, onward)
            next_values[step, lane] = model.value(finals, beyond.memory)[0]
        return Seen(unrolled.params[:-1], values[:-1], next_values)

    def trained(self, column: Tensor) -> Tensor:
        """All but the burn-in; of a chunk that is no longer than that, the last step."""
        return column[min(self._burn_in, len(column) - 1) :]

    def columns(self, batch: Batch, by_step: Columns) -> Columns:
        """Rows `[B, T, ...]`, and `[B, T', ...]` of trained steps."""
        laid = {
            "observations": tensor(batch.observations)[:-1],
            "starts": tensor(batch.starts),
            **by_step,
        }
        rows = {name: column.transpose(0, 1) for name, column in laid.items()}
        return {**rows, "state": tensor(batch.initial_state)}

    def again(self, columns: Columns) -> tuple[Tensor, Tensor]:
        """Parameters `[R, T', P]` and values `[R, T']`."""
        observations = columns["observations"].transpose(0, 1)
        starts, state = columns["starts"].transpose(0, 1), columns["state"]
        policy, burn_in = self._model.policy, min(self._burn_in, len(starts) - 1)
        if burn_in:
            with torch.no_grad():
                warm = policy.unroll(observations[:burn_in], state, starts[:burn_in])
            state, observations, starts = warm.state, observations[burn_in:], starts[burn_in:]
        unrolled = policy.unroll(observations, state, starts)
        values = self._model.value(observations, unrolled.memory)
        return unrolled.params.transpose(0, 1), values.transpose(0, 1)

    def params_again(self, columns: Columns) -> Tensor:
        """Parameters `[R, T', P]`."""
        return self.again(columns)[0]
