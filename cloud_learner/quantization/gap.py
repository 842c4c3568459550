"""How far a policy as published is from the policy that was trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from cloud_learner.models.heads import action_range
from cloud_learner.models.policy import Policy

_NEAR: Final = 0.01  # of the range between an action's bounds
_TINY: Final = 1e-8


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two sets of distributions over the same rows.

    Attributes:
        kl: Nats, the mean of KL(trained || published), 0 or more; see `measure`.
        agreement: Part of the rows, 0 to 1, where both choose the same greedy action: equal whole
            numbers, and Box numbers that are on average within 1 % of their range.
    """

    kl: float
    agreement: float


def measure(policy: Policy, trained: Tensor, published: Tensor) -> Gap:
    """The gap between parameters `[M, P]`.

    An epsilon-greedy policy has no useful KL: it is 0 while both prefer the same action, and jumps
    where two actions are worth almost the same. For it, `kl` is that of softmax(Q / spread), with
    `spread` the mean over the rows of the deviation of Q between the actions: the error of the
    values, in units of the differences that decide.
    """
    if policy.head == "greedy":
        kl = _value_gap(trained, published)
    else:
        kl = policy.distribution.kl(trained, published).mean()
    family = policy.distribution
    alike = _agree(policy, family.mode(trained), family.mode(published))
    # A mean of rounding errors may lie below 0; clamping keeps NaN.
    return Gap(kl=float(kl.clamp(min=0.0)), agreement=float(alike.float().mean()))


def _value_gap(trained: Tensor, published: Tensor) -> Tensor:
    spread = trained.std(-1, correction=0).mean() + _TINY
    log_p = (trained / spread).log_softmax(-1)
    log_q = (published / spread).log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def _agree(policy: Policy, trained: Tensor, published: Tensor) -> Tensor:
    """Whether greedy actions `[M, *act]` are alike, bool `[M]`."""
    action = policy.action
    rows = len(trained)
    ours, theirs = trained.reshape(rows, -1), published.reshape(rows, -1)
    if action.discrete:
        return (ours == theirs).all(-1)
    width = 2.0 * torch.from_numpy(action_range(action).half)
    alike = torch.ones(rows, dtype=torch.bool)
    for choice in action.choices:
        own = slice(choice.start, choice.start + choice.size)
        if choice.values:
            alike &= (ours[:, own] == theirs[:, own]).all(-1)
        else:
            apart = (ours[:, own] - theirs[:, own]).abs() / width[own]
            alike &= apart.mean(-1) < _NEAR
    return alike
