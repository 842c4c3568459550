"""What a device says of a policy that is rolled out to it: pure rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from edge_agent.updates.acted import Acting
from edge_agent.updates.outcome import Outcome, Progress

CHUNKS_FOR_AN_EPISODE: Final = 32
"""Where no episode ends, so many chunks stand for one: a task may go on for ever."""


@dataclass(frozen=True, slots=True)
class PolicyAsked:
    """A policy that the device is to act with, and to tell about.

    Attributes:
        rollout_id: Of the rollout.
        version: Of the policy.
        digest: Of the policy as published, 32 bytes.
        episodes: K, to act before it counts as a success.
    """

    rollout_id: int
    version: int
    digest: bytes
    episodes: int


@dataclass(frozen=True, slots=True)
class PolicySeen:
    """What is so on the device.

    Attributes:
        current: Version that acts; 0: none does.
        was_current: Whether the version that is asked about acted in this run before.
        refused: The version that was refused last; 0: none was.
        refused_reason: Why.
        given_up: Why a policy was given up since that version began to act, if one was.
        acting: What was acted.
    """

    current: int = 0
    was_current: bool = False
    refused: int = 0
    refused_reason: str = ""
    given_up: str = ""
    acting: Acting = field(default_factory=Acting)


def policy_outcome(asked: PolicyAsked, seen: PolicySeen) -> Outcome | None:
    """What to tell of a policy; None: nothing yet.

    That it came, or acts, is no success: it has to have acted so many episodes.
    """
    if seen.current == asked.version:
        return _acting(asked, seen.acting)
    why = ""
    if seen.refused == asked.version:
        why = f"refused it: {seen.refused_reason}"
    elif seen.was_current:
        why = f"gave it up while it acted: {seen.given_up or 'see its events'}"
    if not why or seen.current > asked.version:  # another has come since
        return None
    return Outcome(asked.rollout_id, Progress.FAILED, asked.digest, 0, why)


def _acting(asked: PolicyAsked, acting: Acting) -> Outcome:
    if acting.version != asked.version:
        return Outcome(asked.rollout_id, Progress.STARTED, asked.digest)
    enough = acting.episodes >= asked.episodes
    told = f"acted {acting.episodes} episodes" if enough else ""
    if acting.episodes == 0 and acting.chunks >= asked.episodes * CHUNKS_FOR_AN_EPISODE:
        enough, told = True, f"acted {acting.chunks} chunks, in which no episode ended"
    progress = Progress.SUCCEEDED if enough else Progress.STARTED
    return Outcome(asked.rollout_id, progress, acting.digest, acting.episodes, told)


def worth_telling(outcome: Outcome, told: Outcome | None, asked: PolicyAsked) -> bool:
    """Whether the learner is told: of every step, but not of every episode of many."""
    if told is None or outcome.progress is not told.progress or told.rollout_id != asked.rollout_id:
        return True
    if outcome.progress is not Progress.STARTED:
        return False
    return outcome.episodes >= told.episodes + max(1, asked.episodes // 10)
