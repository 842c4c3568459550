"""What a device tells the learner of something that is rolled out to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Progress(StrEnum):
    """How far the device is with it."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the learner is told.

    Attributes:
        rollout_id: Of the rollout.
        progress: How far it is.
        digest: Of what it is about.
        episodes: Acted on it in this run.
        reason: For people.
    """

    rollout_id: int
    progress: Progress
    digest: bytes
    episodes: int = 0
    reason: str = ""
