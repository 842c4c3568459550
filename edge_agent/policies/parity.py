"""Two forms of one policy side by side: whether they decide alike, and how long it takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_agent.policies.binding import Binding
from edge_agent.policies.policy import Actions, Policy
from shoal.errors import PolicyRejected
from shoal.layout import ActionLayout
from shoal.policy import Golden
from shoal.spaces import Box
from shoal.tensors import Array

AGREEMENT_MIN: Final = 0.75
"""Part of the golden rows in which both choose the same greedy action, at least. A sound twin of a
policy that is undecided yet has been seen at 0.95, a wrong one has about one in the number of
actions; how near the decisions are, log-probabilities say better."""
LOG_PROB_GAP_MAX: Final = 0.2
"""Nats, the mean over golden rows: about what a KL of 0.02 looks like in a single decision."""
STATE_GAP_MAX: Final = 0.05
"""Of 1 and the states' mean magnitude: the mean difference of what both remember."""
NEAR: Final = 0.02
"""Numbers of a Box are alike when they are on average within this part of their range."""
CALLS: Final = 8
"""Decisions timed at once, so that the clock costs little."""
ROUNDS: Final = 25
FEWEST_ROUNDS: Final = 3
BUDGET_S: Final = 0.2
"""A measurement ends after this long, and the fewest rounds."""
LOOKS: Final = 3
SLOW: Final = 3.0
"""A form that takes this many times as long as the fastest, at best of a few single runs, is not
measured any further: one with dynamic ranges takes 10 to 25 times as long on convolutions."""


class Runs(Protocol):
    """What decides when it is run; a `Binding` is one."""

    def run(self) -> None:
        """Decides once."""


def check_parity(
    policy: Policy, twin: Policy, golden: Golden, action: ActionLayout, *, envs: int
) -> None:
    """Checks that a twin decides nearly what its int8 policy decides.

    Args:
        policy: Proven: it reproduces the golden vectors.
        twin: On trial.
        golden: The rows.
        action: How actions lie.
        envs: N, how many it decides for at once: of dynamic ranges that makes a difference.

    Raises:
        PolicyRejected: With the reason `twin`: it does not, or gives NaN or infinity.
    """
    quiet = np.zeros_like(golden.noise)
    rows = envs if twin.precision == "int8_dynamic" else len(quiet)
    greedy = policy.act(golden.observations, quiet, golden.states)
    other = _decided(twin, golden, quiet, rows)
    sampled = _decided(twin, golden, golden.noise, rows)
    for array in (other.actions, sampled.log_probs, sampled.next_states):
        if array is not None and not np.isfinite(array).all():
            raise _refused("it gives NaN or infinity")
    agreement = float(alike(action, greedy.actions, other.actions).mean())
    if agreement < AGREEMENT_MIN:
        raise _refused(
            f"it chooses the same greedy action in {agreement:.0%} of the golden rows, at least"
            f" {AGREEMENT_MIN:.0%} are asked for"
        )
    same = alike(action, golden.actions, sampled.actions)
    gap = float(np.abs(sampled.log_probs - golden.log_probs)[same].mean()) if same.any() else np.inf
    if gap > LOG_PROB_GAP_MAX:
        raise _refused(
            f"its log-probabilities are {gap:.2g} nats off, at most {LOG_PROB_GAP_MAX} are allowed"
        )
    if golden.next_states is not None and sampled.next_states is not None:
        apart = float(np.abs(sampled.next_states - golden.next_states).mean())
        if apart > STATE_GAP_MAX * (1.0 + float(np.abs(golden.next_states).mean())):
            raise _refused(f"what it remembers is {apart:.2g} off")


def alike(action: ActionLayout, ours: Array, theirs: Array) -> NDArray[np.bool_]:
    """In which rows actions `[M, ...]` are alike, `[M]`: whole numbers equal, the others near."""
    rows = len(ours)
    ours, theirs = ours.reshape(rows, -1), theirs.reshape(rows, -1)
    same = np.ones(rows, np.bool_)
    for choice in action.choices:
        own = slice(choice.start, choice.start + choice.size)
        if isinstance(choice.space, Box):
            apart = np.abs(ours[:, own] - theirs[:, own]) / _range(choice.space, ours[:, own])
            same &= apart.mean(axis=1) < NEAR
        else:
            same &= (ours[:, own] == theirs[:, own]).all(axis=1)
    return same


def _decided(policy: Policy, golden: Golden, noise: NDArray[np.float32], rows: int) -> Actions:
    """What a policy decides for the golden rows, so many of them at once."""
    parts = []
    for start in range(0, len(noise), rows):
        own = slice(start, start + rows)
        states = None if golden.states is None else golden.states[own]
        parts.append(policy.act(golden.observations[own], noise[own], states))
    remembered = [part.next_states for part in parts if part.next_states is not None]
    return Actions(
        np.concatenate([part.actions for part in parts]),
        np.concatenate([part.log_probs for part in parts]),
        np.concatenate(remembered) if remembered else None,
    )


def decision_us(
    policies: Sequence[Policy], golden: Golden, envs: int, clock: Callable[[], float]
) -> list[float]:
    """Median time of one decision, in µs, of each policy; they take turns.

    Of one that is much slower than another: the best time of a few.

    Args:
        policies: Of one version.
        golden: What they are asked.
        envs: N, observations of one decision.
        clock: Monotonic, seconds.
    """
    return times_us([_bind(policy, golden, envs) for policy in policies], clock)


def times_us(bindings: Sequence[Runs], clock: Callable[[], float]) -> list[float]:
    """Median time of one run, in µs, of each; they take turns, see `decision_us`."""
    looks_s = [_best_s(binding, clock) for binding in bindings]  # which warms them up as well
    times_s: list[list[float]] = [[look_s * CALLS] for look_s in looks_s]
    near = [i for i, look_s in enumerate(looks_s) if look_s <= SLOW * min(looks_s)]
    for i in near:
        _run(bindings[i])
        times_s[i].clear()
    begun_s = clock()
    for turn in range(ROUNDS):
        now_s = clock()
        if turn >= FEWEST_ROUNDS and now_s - begun_s > BUDGET_S:
            break
        for i in near:
            since_s = clock()
            _run(bindings[i])
            times_s[i].append(clock() - since_s)
    return [statistics.median(taken_s) / CALLS * 1e6 for taken_s in times_s]


def _bind(policy: Policy, golden: Golden, envs: int) -> Binding:
    binding = Binding(policy, repeated(golden.observations, envs))
    binding.noise[...] = repeated(golden.noise, envs)
    if golden.states is not None:
        binding.state[...] = repeated(golden.states, envs)
    return binding


def _run(binding: Runs) -> None:
    for _ in range(CALLS):
        binding.run()


def _best_s(binding: Runs, clock: Callable[[], float]) -> float:
    taken_s = []
    for _ in range(LOOKS):
        since_s = clock()
        binding.run()
        taken_s.append(clock() - since_s)
    return min(taken_s)


def repeated(rows: Array, envs: int) -> Array:
    """As many rows as there are environments, from the first on and over again."""
    native = rows.astype(rows.dtype.newbyteorder("="))
    return np.resize(native, (envs, *rows.shape[1:]))


def _range(box: Box, seen: Array) -> NDArray[np.float64]:
    """The range `[numbers]` of a Box; without bounds what was seen of it, 1 at least."""
    low, high = box.low.astype(np.float64).ravel(), box.high.astype(np.float64).ravel()
    bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(bounded, high - low, np.maximum(np.ptp(seen, axis=0), 1.0))


def _refused(problem: str) -> PolicyRejected:
    return PolicyRejected("twin", f"it does not decide like int8: {problem}")
