"""What `shoal agent check ENV` looks at: whether an environment keeps its contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_agent.checks.finding import Finding, Level, fault, skipped
from edge_agent.checks.ledger import Episode, Ledger
from edge_agent.checks.trial import Trial, attempt, call, sample
from edge_agent.config import EnvConfig
from edge_agent.environments.env import Copy, EnvironmentFault, Environments, make_env, one_line
from edge_agent.environments.rows import Rows
from shoal.errors import EnvironmentFailed, ShoalError
from shoal.layout import ActionLayout, ObservationLayout
from shoal.noise import noise_block
from shoal.spaces import Space
from shoal.tensors import Array

SEEDED_STEPS = 32
EXACT_STEPS, EXACT_S, EXACT_EPISODES = 2048, 5.0, 3
"""Where the loop over an environment ends: steps, seconds, or episodes that ended."""
_SPACE_CHARACTERS = 120
_SAME_LENGTH_IS_ODD = 3

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Run:
    """What our own loop recorded of one environment, and what the environment itself saw."""

    recorded: Sequence[Episode]
    steps: int
    ledger: Ledger


def check_environment(
    config: EnvConfig, *, control_hz: float | None = None, clock: Clock = time.perf_counter
) -> Sequence[Finding]:
    """Looks at one environment; needs nothing of a fleet and makes no files.

    Args:
        config: names it.
        control_hz: the rate that an agent is to hold; None: any.
        clock: monotonic, seconds.
    """
    rest = ("observations", "seeding", "exactness", "endings", "step_time", "reset_time")
    try:
        envs = make_env(config)
    except ShoalError as error:
        return [fault("spaces", error), *(skipped(name, "environment") for name in rest)]
    with envs:
        found = [_spaces(envs)]
        try:
            trial = attempt(envs.copies, envs.spec.observation, seed=config.seed or 0, clock=clock)
        except EnvironmentFault as error:
            found.append(fault("observations", error))
            return [*found, *(skipped(name, "environment") for name in rest[1:])]
        found.append(_observations(trial))
        try:
            seeding = check_seeding(envs, seed=config.seed or 0, clock=clock)
            found.append(seeding)
            run = _run(envs, seed=config.seed or 0, clock=clock)
            found.append(check_exactness(run, replays=seeding.level is Level.OK))
            found.append(check_endings(run.recorded, run.steps, envs.spec.max_episode_steps))
        except EnvironmentFailed as error:
            missing = [name for name in rest[1:4] if name not in {each.name for each in found}]
            found.append(fault(missing[0], EnvironmentFault(str(error))))
            found += [skipped(name, missing[0]) for name in missing[1:]]
        found.append(step_time(trial, envs.num_envs, control_hz))
        found.append(reset_time(trial, control_hz))
    return found


def _spaces(envs: Environments) -> Finding:
    first = envs.copies[0]
    seen, does = (
        one_line(space, _SPACE_CHARACTERS)
        for space in (first.observation_space, first.action_space)
    )
    observation = ObservationLayout.of(envs.spec.observation)
    size = sum(field.size_bytes for field in observation.fields)
    numbers = ActionLayout.of(envs.spec.action).size
    noun = "number" if numbers == 1 else "numbers"
    detail = f"{seen} -> {does}; {size} bytes an observation, {numbers} {noun} an action"
    return Finding("spaces", Level.OK, detail)


def _observations(trial: Trial) -> Finding:
    level = Level.WARN if trial.warnings else Level.OK
    said = f"{trial.steps} steps of every copy looked at"
    return Finding("observations", level, "; ".join([*trial.warnings, said]))


def check_seeding(envs: Environments, *, seed: int, clock: Clock) -> Finding:
    """Whether a seed and actions make a trajectory.

    Args:
        envs: the first of them is looked at.
        seed: given to both resets.
        clock: monotonic, seconds.

    Raises:
        EnvironmentFault: it raised.
    """
    copy, space = envs.copies[0], envs.spec.observation
    copy.action_space.seed(seed)
    actions = [sample(copy) for _ in range(SEEDED_STEPS)]
    first = _trajectory(copy, space, seed, actions, clock)
    second = _trajectory(copy, space, seed, actions[: len(first) - 1], clock)
    if first == second:
        steps = len(first) - 1
        said = f"two resets with seed {seed} and equal actions gave the same {steps} steps"
        return Finding("seeding", Level.OK, said)
    pairs = enumerate(zip(first, second, strict=False))
    at = next((k for k, (one, other) in pairs if one != other), len(second))
    when = f"from step {at} on" if at else "at the reset"
    return Finding(
        "seeding",
        Level.WARN,
        f"two resets with seed {seed} and equal actions differ {when}: draw from self.np_random"
        " after super().reset(seed=seed); until then episodes cannot be repeated",
    )


def _trajectory(
    copy: Copy, space: Space, seed: int, actions: Sequence[object], clock: Clock
) -> list[object]:
    """What a seed and actions give, until an episode or the time for it ends."""
    rows, until_s = Rows(space, 1), clock() + EXACT_S
    begun: Any = call("reset", copy.reset, seed=seed)
    rows.put(0, begun[0])
    found: list[object] = [rows.array.tobytes()]
    for action in actions:
        given: Any = call("step", copy.step, action)
        rows.put(0, given[0])
        found.append((rows.array.tobytes(), float(given[1]), bool(given[2]), bool(given[3])))
        if given[2] or given[3] or clock() > until_s:
            break
    return found


def _run(envs: Environments, *, seed: int, clock: Clock) -> Run:
    """Our own loop over one environment, as an actor runs it, with random actions."""
    ledger = Ledger(envs.copies[0])
    loop = Environments(envs.spec.env_id, [ledger], seed=seed)
    loop.reset()
    layout = ActionLayout.of(envs.spec.action)
    recorded: list[Episode] = []
    steps, until_s = 0, clock() + EXACT_S
    while steps < EXACT_STEPS and len(recorded) < EXACT_EPISODES and clock() < until_s:
        step = loop.step(_random(layout, envs, steps))
        steps += 1
        for ending in step.endings:
            flags = bool(step.terminated[0]), bool(step.truncated[0])
            last, first = ending.final_observation.tobytes(), step.observations[0].tobytes()
            recorded.append(Episode(ending.length, ending.total_return, *flags, last, first))
    return Run(recorded, steps, ledger)


def _random(layout: ActionLayout, envs: Environments, step: int) -> Array:
    """Actions `[1, *shape]` as a policy without preferences gives them."""
    noise = noise_block(bytes(16), step, 1, 1, envs.spec.action)[0]
    numbers = np.empty((1, layout.size), np.float32)
    for choice in layout.choices:
        own = noise[:, choice.noise_start : choice.noise_start + choice.noise_width]
        if choice.values:
            ends = np.cumsum(choice.values)[:-1]
            picks = [part.argmax(axis=1) for part in np.split(own, ends, axis=1)]
            own = np.stack(picks, axis=1)
        numbers[:, choice.start : choice.start + choice.size] = own
    return numbers.astype(layout.dtype).reshape(1, *layout.shape)


def check_exactness(run: Run, *, replays: bool) -> Finding:
    """Whether what the loop recorded is what happened, step for step.

    Args:
        run: both.
        replays: whether the environment does the same again, given seed and actions.

    Raises:
        EnvironmentFault: it raised when it was replayed.
    """
    name, ledger = "exactness", run.ledger
    bare = ledger.replay() if replays else ledger.episodes
    if run.steps != ledger.steps or list(run.recorded) != list(ledger.episodes):
        return Finding(
            name,
            Level.FAULT,
            f"{run.steps} steps were recorded and {ledger.steps} happened, or episodes differ:"
            " report this as a bug",
            exit_code=1,
        )
    if list(bare) != list(ledger.episodes):
        return Finding(
            name,
            Level.WARN,
            "a bare loop with the same seeds and actions gave other episodes: the environment keeps"
            " state beyond its resets; make reset() set everything anew",
        )
    lengths = [episode.length for episode in run.recorded]
    said = f"episodes of {lengths} steps" if lengths else "no episode ended, all steps"
    return Finding(name, Level.OK, f"{run.steps} steps taken, {run.steps} recorded; {said}")


def check_endings(
    episodes: Sequence[Episode], steps: int, max_episode_steps: int | None
) -> Finding:
    """Whether a time limit is told from a true end.

    Args:
        episodes: those that ended, under random actions.
        steps: taken in all.
        max_episode_steps: the limit that the environment is registered with.
    """
    name = "endings"
    limit = "" if max_episode_steps is None else f"; its limit is {max_episode_steps} steps"
    if not episodes:
        if max_episode_steps is not None:
            return Finding(name, Level.OK, f"no episode ended in {steps} steps{limit}")
        return Finding(
            name,
            Level.WARN,
            f"no episode ended in {steps} steps and there is no limit: returns are known only when"
            " episodes end; set max_episode_steps, or end them",
        )
    lengths = {episode.length for episode in episodes}
    both = sum(episode.terminated and episode.truncated for episode in episodes)
    at_limit = [e for e in episodes if e.length == max_episode_steps and not e.truncated]
    if both:
        said = (
            f"terminated and truncated at once in {both} of {len(episodes)} episodes: the learner"
            " takes that for terminated; return truncated alone where a limit cuts an episode short"
        )
    elif max_episode_steps is not None and max(lengths) > max_episode_steps:
        said = f"an episode took {max(lengths)} steps{limit}: keep to it, or correct the limit"
    elif at_limit or (
        len(episodes) >= _SAME_LENGTH_IS_ODD
        and len(lengths) == 1
        and all(e.terminated for e in episodes)
        and max(lengths) > 1
    ):
        said = (
            f"each of {len(episodes)} episodes terminated at exactly step {max(lengths)}: if that"
            " is a limit return truncated there, else what follows is taken to be worth nothing"
        )
    else:
        ends = sum(episode.terminated for episode in episodes)
        cut = sum(episode.truncated for episode in episodes)
        return Finding(name, Level.OK, f"{ends} episodes terminated, {cut} truncated{limit}")
    return Finding(name, Level.WARN, said)


def step_time(trial: Trial, envs: int, control_hz: float | None) -> Finding:
    """Whether the environments alone leave time for a policy.

    Args:
        trial: how long they took.
        envs: how many are stepped one after another.
        control_hz: the rate to hold, steps of all environments a second; None: any.
    """
    took = f"one step takes {trial.step_ms:.3g} ms"
    took += f" ({envs} environments, one after another)" if envs > 1 else ""
    if control_hz is None:
        return Finding("step_time", Level.OK, f"{took}, without the policy; no control_hz is set")
    allowed_ms = 1000 / control_hz
    allows = f"control_hz = {control_hz:g} allows {allowed_ms:.3g} ms"
    if trial.step_ms > allowed_ms:
        advice = "lower actor.control_hz" + (" or env.num_envs" if envs > 1 else "")
        return Finding("step_time", Level.FAULT, f"{took}, {allows}: {advice}", exit_code=1)
    return Finding("step_time", Level.OK, f"{took}, without the policy; {allows}")


def reset_time(trial: Trial, control_hz: float | None) -> Finding:
    """How long the control loop stands still where an episode ends.

    Args:
        trial: how long it took.
        control_hz: the rate to hold, steps a second; None: any.
    """
    took = f"the longest reset took {trial.reset_ms:.3g} ms"
    if control_hz is None or trial.reset_ms <= 1000 / control_hz:
        return Finding("reset_time", Level.OK, took)
    missed = int(trial.reset_ms * control_hz / 1000)
    return Finding(
        "reset_time",
        Level.WARN,
        f"{took}: about {missed} deadlines of control_hz = {control_hz:g} pass whenever an episode"
        " ends, with no action; let reset() return sooner if something moves meanwhile",
    )
