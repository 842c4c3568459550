"""V-trace: value targets and advantages from what another policy did.

Espeholt et al. 2018, "IMPALA", equation 1 and remark 2, with the two kinds of episode ends told
apart: after a termination the future is worth nothing, after a truncation it is worth the value
of the true final observation; corrections never flow across either.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class VTrace:
    """What `vtrace` gives, both `[T, B]`.

    Attributes:
        targets: v_t, what the critic should say of the state at t.
        advantages: r_t + gamma V(x_t+1) - V(x_t) + gamma lambda (v_t+1 - V(x_t+1)). On-policy this
            is GAE(lambda) (Schulman et al. 2016); off-policy the corrections from t+1 on are in it
            and the action's own importance weight is left to the policy loss.
    """

    targets: Tensor
    advantages: Tensor


def vtrace(
    *,
    values: Tensor,
    next_values: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    ratios: Tensor,
    gamma: float,
    trace_lambda: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> VTrace:
    """Computes V-trace targets and advantages, without gradients.

    Args:
        values: `[T, B]` V(x_t).
        next_values: `[T, B]` value of what followed the action at t: V(x_t+1), or V of the true
            final observation where an episode ended. Ignored where it terminated.
        rewards: `[T, B]`.
        terminated: `[T, B]` bool.
        truncated: `[T, B]` bool.
        ratios: `[T, B]` target(a_t) / behaviour(a_t).
        gamma: Discount a step.
        trace_lambda: Decay of the traces (remark 2); 1 is V-trace as published.
        rho_bar: Upper bound of the weight of each temporal difference.
        c_bar: Upper bound of the weight carried one step back.
    """
    with torch.no_grad():
        future = gamma * next_values.masked_fill(terminated, 0.0)
        differences = rewards + future - values
        weighted = ratios.clamp(max=rho_bar) * differences
        carry = (gamma * trace_lambda) * ratios.clamp(max=c_bar)
        flows = ~(terminated | truncated)
        carry = carry * flows
        corrections = torch.empty_like(values)
        running = torch.zeros_like(values[0])
        for target, delta, weight in zip(
            reversed(corrections.unbind(0)),
            reversed(weighted.unbind(0)),
            reversed(carry.unbind(0)),
            strict=True,
        ):
            running = torch.addcmul(delta, weight, running, out=target)
        advantages = differences.clone()
        advantages[:-1].addcmul_(flows[:-1], corrections[1:], value=gamma * trace_lambda)
        return VTrace(targets=values + corrections, advantages=advantages)
