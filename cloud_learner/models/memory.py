"""The arithmetic of memory over steps, in torch; the policy graph does one step of the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from cloud_learner.models.plan import Attention

MASKED: Final = -1e9  # far below any score, and finite: a softmax of it is exactly 0


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """What a memory gives over T steps of B environments.

    Attributes:
        outputs: `[T, B, F]`.
        states: `[T, B, S]`, what each step read: zeros where an episode begins.
        state: `[B, S]`, after the last step.
    """

    outputs: Tensor
    states: Tensor
    state: Tensor


def unroll_lstm(
    gates: Callable[[int, Tensor], Tensor], steps: int, state: Tensor, starts: Tensor
) -> Remembered:
    """Runs an LSTM.

    Args:
        gates: Gives `input | forget | output | candidate` `[B, 4 F]`, before their activations, of
            a step from the step and `h` `[B, F]`.
        steps: T.
        state: `[B, S]`, `h | c`.
        starts: bool `[T, B]`.
    """
    keep = (~starts).to(state.dtype).unsqueeze(-1)
    units = state.shape[-1] // 2
    outputs, states = [], []
    for step in range(steps):
        state = state * keep[step]
        states.append(state)
        cell = state[..., units:]
        raw = gates(step, state[..., :units])
        enter, forget, leave = raw[..., : 3 * units].sigmoid().chunk(3, -1)
        cell = forget * cell + enter * raw[..., 3 * units :].tanh()
        hidden = leave * cell.tanh()
        outputs.append(hidden)
        state = torch.cat((hidden, cell), -1)
    return Remembered(torch.stack(outputs), torch.stack(states), state)


def unroll_attention(
    memory: Attention, projected: Tensor, bias: Tensor, state: Tensor, starts: Tensor
) -> Remembered:
    """Runs attention over a window, all steps at once.

    Args:
        memory: Its shape.
        projected: `query | key | value` of each step, `[T, B, 3 F]`.
        bias: `[window]`, added to the score of each age, oldest first.
        state: `[B, S]`.
        starts: bool `[T, B]`.
    """
    steps, lanes = starts.shape
    units, back = memory.units, memory.window - 1
    query, key, value = torch.split(projected, units, -1)
    past_keys, past_values, flags = torch.split(state, [back * units, back * units, back], -1)
    keys = torch.cat((past_keys.view(lanes, back, units).transpose(0, 1), key))
    values = torch.cat((past_values.view(lanes, back, units).transpose(0, 1), value))
    episode = torch.cat((starts.new_zeros(back, lanes, dtype=torch.int64), starts.cumsum(0)))
    valid = torch.cat((flags.T, flags.new_ones(steps, lanes)))
    window = memory.window
    same = episode.unfold(0, window, 1) == episode[back:].unsqueeze(-1)  # [T, B, window]
    seen = valid.unfold(0, window, 1) * same.to(valid.dtype)
    near_keys = keys.unfold(0, window, 1)  # [T, B, F, window]
    near_values = values.unfold(0, window, 1)
    scores = (query.unsqueeze(-2) @ near_keys).squeeze(-2) * (1.0 / math.sqrt(units))
    weights = functional.softmax(scores + bias + (seen - 1.0) * -MASKED, -1)
    outputs = (near_values @ weights.unsqueeze(-1)).squeeze(-1)

    def held(near: Tensor, mask: Tensor) -> Tensor:
        return (near * mask.unsqueeze(-2)).transpose(-1, -2).flatten(-2)

    before = seen[..., :-1]
    states = torch.cat(
        (held(near_keys[..., :-1], before), held(near_values[..., :-1], before), before), -1
    )
    after = seen[-1, :, 1:]
    final = torch.cat(
        (held(near_keys[-1, ..., 1:], after), held(near_values[-1, ..., 1:], after), after), -1
    )
    return Remembered(outputs, states, final)
