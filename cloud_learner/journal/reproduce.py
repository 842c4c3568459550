"""Makes a device's decisions again, from what it recorded, and compares them bit for bit.

An action is a function of the observation, the noise, the state and the policy alone. The noise
follows from the run and the step, the policy from its digest, and the chunk holds the rest: so
whoever has journal and policy log can tell a device that is broken, or that lies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cloud_learner.journal.episodes import EpisodeJoiner, WholeEpisode
from cloud_learner.journal.reader import JournaledChunk
from shoal.layout import ObservationLayout
from shoal.noise import noise_block
from shoal.policy import ACTION, LOG_PROB, NEXT_STATE, NOISE, OBSERVATION, STATE
from shoal.spaces import EnvSpec
from shoal.tensors import Array
from shoal.trajectory import Chunk

Decide = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Runs a policy graph once: inputs by name to outputs by name."""
_SHOWN = 8  # numbers of a long value


@dataclass(frozen=True, slots=True)
class RunnablePolicy:
    """A policy version that can decide.

    Attributes:
        digest: What names it; a chunk says which it acted with.
        precision: In which it decides; that of a twin, where it is one.
        noise_correlation: Of the noise it was published with.
        decide: Runs it.
    """

    digest: bytes
    noise_correlation: float
    decide: Decide
    precision: str = "int8"


@dataclass(frozen=True, slots=True, eq=False)
class Recomputed:
    """What a policy decides on the recorded observations.

    Attributes:
        actions: `[T, N, ...]`.
        log_probs: float32 `[T, N]`.
        state: float32 `[N, S]` after the last step; None without memory.
    """

    actions: Array
    log_probs: NDArray[np.float32]
    state: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that was recorded and does not come out again.

    Attributes:
        seq: The chunk.
        step: Vector step within it.
        env: Index of the environment.
        what: `action`, `log_prob`, `state`, or `policy_digest` (of the whole chunk).
        recorded: As the device has it.
        recomputed: As it comes out here.
    """

    seq: int
    step: int
    env: int
    what: str
    recorded: str
    recomputed: str


@dataclass(slots=True)
class Report:
    """What came out of a comparison.

    Attributes:
        chunks: Compared.
        decisions: Compared, T x N of each chunk.
        differing: Decisions that differ.
        without_policy: Chunks whose policy version is not kept any more: not compared.
        versions_gone: The lowest and the highest of those versions.
        precisions: In which the policies acted that were compared.
        first: The first difference.
    """

    chunks: int = 0
    decisions: int = 0
    differing: int = 0
    without_policy: int = 0
    versions_gone: tuple[int, int] | None = None
    precisions: set[str] = field(default_factory=set)
    first: Difference | None = None

    def note_gone(self, version: int) -> None:
        """Counts a chunk whose policy is not kept."""
        low, high = self.versions_gone or (version, version)
        self.versions_gone = (min(low, version), max(high, version))
        self.without_policy += 1

    def note(self, difference: Difference) -> None:
        """Keeps it if it is the first."""
        self.first = self.first or difference


class Reproduction:
    """Compares the chunks of one run, in order.

    >>> reproduction = Reproduction(spec, run_id, policies.get)
    >>> for item in journal.chunks(run):
    ...     reproduction.add(item)
    >>> reproduction.report.first       # None: everything came out again
    """

    def __init__(
        self,
        spec: EnvSpec,
        run_id: bytes,
        policy_of: Callable[[int, bytes], RunnablePolicy | None],
        *,
        tolerance: float = 0.0,
    ) -> None:
        """Begins.

        Args:
            spec: The spaces that were acted in.
            run_id: Keys the noise.
            policy_of: What acted, by version and digest: the policy or its float twin. Where it is
                neither, the policy; None where it is not kept.
            tolerance: How far, relative and absolute, floats may be off, for a device whose
                processor rounds otherwise; 0 compares bit for bit. Integers are always compared
                exactly.
        """
        self.report = Report()
        self._spec = spec
        self._run_id = run_id
        self._policy_of = policy_of
        self._tolerance = tolerance
        self._carried: tuple[int, NDArray[np.float32]] | None = None

    def add(self, item: JournaledChunk, only: NDArray[np.bool_] | None = None) -> None:
        """Compares a chunk, or the decisions of it that `only` `[T, N]` names."""
        report, chunk = self.report, item.chunk
        policy = self._policy_of(chunk.policy_version, chunk.policy_digest)
        if policy is None:
            report.note_gone(chunk.policy_version)
            return
        report.chunks += 1
        chosen = np.ones(chunk.rewards.shape, np.bool_) if only is None else only
        count = int(chosen.sum())
        report.decisions += count
        report.precisions.add(policy.precision)
        if policy.digest != chunk.policy_digest:
            report.differing += count
            recorded, kept = chunk.policy_digest.hex(), policy.digest.hex()
            report.note(Difference(item.seq, 0, 0, "policy_digest", recorded, kept))
            return
        self._check_state(item)
        again = recompute(chunk, self._run_id, self._spec, policy)
        if again.state is not None:
            self._carried = (item.seq + 1, again.state)
        actions = _differs(chunk.actions, again.actions, self._tolerance)
        log_probs = _differs(chunk.log_probs, again.log_probs, self._tolerance)
        wrong = (actions | log_probs) & chosen
        report.differing += int(wrong.sum())
        for step, env in np.argwhere(wrong)[:1].tolist():
            what = "action" if actions[step, env] else "log_prob"
            ours, theirs = (
                (again.actions, chunk.actions)
                if what == "action"
                else (again.log_probs, chunk.log_probs)
            )
            recorded, recomputed = _text(theirs[step, env]), _text(ours[step, env])
            report.note(Difference(item.seq, step, env, what, recorded, recomputed))

    def _check_state(self, item: JournaledChunk) -> None:
        """A policy's memory begins with zeros, and goes on where the chunk before left it."""
        recorded = item.chunk.initial_state
        if recorded is None:
            return
        if item.chunk.first_step == 0:
            carried = np.zeros_like(recorded)
        elif self._carried is not None and self._carried[0] == item.seq:
            carried = self._carried[1]
        else:
            return
        if recorded.shape != carried.shape:
            return  # another network acts now
        wrong = _differs(recorded, carried, self._tolerance).any(axis=1)
        for env in np.flatnonzero(wrong)[:1].tolist():
            self.report.differing += int(wrong.sum())
            self.report.note(
                Difference(item.seq, 0, env, "state", _text(recorded[env]), _text(carried[env]))
            )


def recompute(chunk: Chunk, run_id: bytes, spec: EnvSpec, policy: RunnablePolicy) -> Recomputed:
    """Has a policy decide on every observation of a chunk, with the device's own noise."""
    noise = noise_block(
        run_id, chunk.first_step, chunk.steps, chunk.envs, spec.action, policy.noise_correlation
    )
    layout = ObservationLayout.of(spec.observation)
    inputs = {
        field.input_name(OBSERVATION): _native(leaf)
        for field, leaf in zip(
            layout.fields, layout.unpack(chunk.observations).values(), strict=True
        )
    }
    actions, log_probs = np.empty_like(chunk.actions), np.empty_like(chunk.log_probs)
    state = None if chunk.initial_state is None else _native(chunk.initial_state)
    for t in range(chunk.steps):
        feeds = {name: leaf[t] for name, leaf in inputs.items()} | {NOISE: noise[t]}
        if state is not None:
            feeds[STATE] = state
        decided = policy.decide(feeds)
        actions[t], log_probs[t] = decided[ACTION], decided[LOG_PROB]
        if state is not None:
            state = decided[NEXT_STATE].copy()
            state[chunk.terminated[t] | chunk.truncated[t]] = 0.0
    return Recomputed(actions, log_probs, state)


def nth_episode(chunks: Iterable[JournaledChunk], number: int) -> WholeEpisode | None:
    """The episode of that number (0 is the first) among the whole ones of a run."""
    return next(itertools.islice(whole_episodes(chunks), number, None), None)


def whole_episodes(chunks: Iterable[JournaledChunk]) -> Iterator[WholeEpisode]:
    """The whole episodes of a run, in the order in which they ended."""
    joiner = EpisodeJoiner()
    for item in chunks:
        yield from joiner.add(item.seq, item.chunk)


def steps_of(episode: WholeEpisode, item: JournaledChunk) -> NDArray[np.bool_]:
    """Which decisions `[T, N]` of a chunk belong to an episode."""
    chosen = np.zeros(item.chunk.rewards.shape, np.bool_)
    start = episode.first.step if item.seq == episode.first.seq else 0
    stop = episode.last.step + 1 if item.seq == episode.last.seq else item.chunk.steps
    if episode.first.seq <= item.seq <= episode.last.seq:
        chosen[start:stop, episode.env] = True
    return chosen


def _differs(recorded: Array, again: Array, tolerance: float) -> NDArray[np.bool_]:
    """Where they differ, by the leading two axes: `[A, B]` of `[A, B, ...]`."""
    if tolerance and recorded.dtype.kind == "f":
        apart = ~np.isclose(recorded, again, rtol=tolerance, atol=tolerance)
    else:
        unsigned = np.dtype(f"u{recorded.dtype.itemsize}")
        apart = _native(recorded).view(unsigned) != _native(again).view(unsigned)
    wrong: NDArray[np.bool_] = np.logical_or.reduce(apart.reshape(*apart.shape[:2], -1), axis=-1)
    return wrong


def _native(array: Array) -> Array:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _text(value: Array) -> str:
    """Every digit of it, and of a long one the beginning."""
    flat = np.asarray(value).ravel()
    shown = ", ".join(str(number) for number in flat[:_SHOWN])  # numpy's str tells floats apart
    if flat.size == 1:
        return shown
    return f"[{shown}{', ...' if flat.size > _SHOWN else ''}]"
