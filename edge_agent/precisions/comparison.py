"""The forms of one policy beside each other: the time of a decision, and how far from fp32.

The time is that of one decision on bound arrays, as the control loop has it; parity is the part of
the observations where the greedy action is that of fp32, and the mean KL(fp32 || form).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_agent.environments.env import Environments
from edge_agent.policies.binding import Binding
from edge_agent.policies.parity import alike, repeated
from edge_agent.policies.policy import Policy
from edge_agent.precisions.forms import DYNAMIC, FP32, STATIC, Forms
from shoal.layout import ActionLayout
from shoal.noise import RUN_ID_BYTES, noise_block
from shoal.policy import DISTRIBUTION, NOISE, OBSERVATION, STATE
from shoal.tensors import Array

ORDER = (FP32, STATIC, DYNAMIC)
BLOCK = 50
"""Decisions of one form before the next has its turn."""
_TINY = 1e-8
_DIGITS = 9

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a policy is asked: observations `[M, ...]`, noise `[M, width]`, states `[M, S]`."""

    observations: Array
    noise: Floats
    states: Floats | None


@dataclass(frozen=True, slots=True)
class Line:
    """One form for one number of observations.

    Attributes:
        p50_us: Of one decision; None where there is no such form.
        agreement: Part of the rows with the greedy action of fp32; None without fp32.
        kl: Nats, the mean of KL(fp32 || form); None without fp32.
        note: Why a figure is missing.
    """

    precision: str
    envs: int
    p50_us: float | None
    p99_us: float | None
    agreement: float | None
    kl: float | None
    note: str = ""


def collect(environments: Environments, policy: Policy, count: int) -> Rows:
    """What a policy meets: at least `count` observations, and the states that it had at them."""
    envs, spec = environments.num_envs, environments.spec
    steps = -(-count // envs)
    noise = noise_block(bytes(RUN_ID_BYTES), 0, steps, envs, spec.action)
    observations: list[Array] = []
    states: list[Floats] = []
    state: Floats | None = np.zeros((envs, policy.memory), np.float32) if policy.memory else None
    seen = environments.reset()
    for t in range(steps):
        observations.append(seen.copy())
        decided = policy.act(observations[-1], noise[t], state)
        step = environments.step(decided.actions)
        seen = step.observations
        if state is not None and decided.next_states is not None:
            states.append(state)
            state = decided.next_states.copy()
            state[step.terminated | step.truncated] = 0.0
    return Rows(
        np.concatenate(observations),
        np.concatenate(list(noise)),
        np.concatenate(states) if states else None,
    )


def distribution_of(policy: Policy, rows: Rows) -> Floats:
    """Parameters `[M, P]`."""
    feeds: dict[str, Array] = {NOISE: rows.noise}
    assert policy.layout is not None  # noqa: S101 - `forms_of` gives one
    leaves = policy.layout.unpack(rows.observations)
    feeds |= {f.input_name(OBSERVATION): leaves[f.path] for f in policy.layout.fields}
    if rows.states is not None:
        feeds[STATE] = rows.states
    (found,) = policy.session.runtime.run([DISTRIBUTION], feeds)
    params: Floats = found
    return params


def divergence(action: ActionLayout, ours: Array, theirs: Array, *, values: bool) -> float:
    """Nats, the mean of KL(ours || theirs) over parameters `[M, P]`.

    Args:
        action: How actions lie.
        ours: Logits of every discrete element, and mean | log deviation of every Box, in order.
        theirs: Likewise.
        values: They are Q-values: softmax(Q / spread) is compared, spread the mean over the rows
            of the deviation of Q between the actions, as the learner's quantization gap has it.
    """
    p, q = ours.astype(np.float64), theirs.astype(np.float64)
    if values:
        spread = p.std(axis=1).mean() + _TINY
        p, q = p / spread, q / spread
    total, start = np.zeros(len(p)), 0
    for choice in action.choices:
        for n in choice.values:
            own = slice(start, start + n)
            log_p, log_q = _log_softmax(p[:, own]), _log_softmax(q[:, own])
            total += (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
            start += n
        if not choice.values:
            n = choice.size
            mean, wide = slice(start, start + n), slice(start + n, start + 2 * n)
            apart = (p[:, mean] - q[:, mean]) ** 2 + np.exp(2 * p[:, wide])
            each = q[:, wide] - p[:, wide] + apart / (2 * np.exp(2 * q[:, wide])) - 0.5
            total += each.sum(axis=1)
            start += 2 * n
    return max(0.0, float(total.mean()))


def parity(forms: Forms, rows: Rows, action: ActionLayout) -> dict[str, tuple[float, float]]:
    """Agreement and KL of each form, against fp32."""
    if FP32 not in forms.policies:
        return {}
    quiet = np.zeros_like(rows.noise)
    greedy = {
        name: policy.act(rows.observations, quiet, rows.states).actions
        for name, policy in forms.policies.items()
    }
    params = {name: distribution_of(policy, rows) for name, policy in forms.policies.items()}
    return {
        name: (
            float(alike(action, greedy[FP32], greedy[name]).mean()),
            divergence(action, params[FP32], params[name], values=bool(forms.values)),
        )
        for name in forms.policies
    }


def latencies(
    policies: Mapping[str, Policy], rows: Rows, envs: int, calls: int
) -> dict[str, tuple[float, float]]:
    """µs of one decision for `envs` observations, p50 and p99, the forms in turn."""
    bindings = {name: _bound(policy, rows, envs) for name, policy in policies.items()}
    times: dict[str, list[int]] = {name: [] for name in policies}
    for turn in range(max(1, calls // BLOCK) + 1):
        for name, binding in bindings.items():
            for _ in range(BLOCK):
                since = time.perf_counter_ns()
                binding.run()
                took = time.perf_counter_ns() - since
                if turn:  # the first one warms up
                    times[name].append(took)
    return {
        name: (float(np.percentile(taken, 50)) / 1e3, float(np.percentile(taken, 99)) / 1e3)
        for name, taken in times.items()
    }


def measure(forms: Forms, rows: Rows, action: ActionLayout, envs: int, calls: int) -> list[Line]:
    """Every form, for 1 observation and for `envs`."""
    lines = []
    near = parity(forms, rows, action)
    for count in sorted({1, envs}):
        timed = latencies(forms.policies, rows, count, calls)
        for name in ORDER:
            if name not in timed:
                note = f"n/a: {forms.missing.get(name, 'not made')}"
                lines.append(Line(name, count, None, None, None, None, note))
                continue
            p50_us, p99_us = timed[name]
            agreement, kl = near.get(name, (None, None))
            lines.append(
                Line(name, count, round(p50_us, 2), round(p99_us, 2), _short(agreement), _short(kl))
            )
    return lines


def _bound(policy: Policy, rows: Rows, envs: int) -> Binding:
    binding = Binding(policy, repeated(rows.observations[:envs], envs))
    binding.noise[...] = repeated(rows.noise[:envs], envs)
    if rows.states is not None:
        binding.state[...] = repeated(rows.states[:envs], envs)
    return binding


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probs


def _short(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(value, _DIGITS)
