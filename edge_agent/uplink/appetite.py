"""The learner's appetite: from which version on chunks are of use, and how many it can take.

The learner says it again and again. When it falls silent, what it said last lapses: acting goes on
freely and everything is spooled, as nobody knows what the next learner can use.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shoal.errors import WireError
from shoal.noise import RUN_ID_BYTES
from shoal.v1 import device_pb2 as pb

MAX_PAST_LEARNERS: Final = 16
"""Runs of learners that were replaced and are still known: what they said comes too late."""
STOP_CHECK_S: Final = 0.25
"""How soon a control thread that holds back notices that the process stops."""
_TOO_MANY: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a learner said.

    Attributes:
        learner_run_id: the process that said it, 16 bytes.
        sent_seq: its number among what that process said.
        oldest_version: chunks of versions before it are of no use; 0: all are of use.
        steps_per_s: transitions a second wanted of this device; 0: as many as it makes.
        codecs: of chunks that it reads besides `CODEC_ZSTD`; some may not be known here.
    """

    learner_run_id: bytes
    sent_seq: int
    oldest_version: int
    steps_per_s: float
    codecs: frozenset[int] = frozenset()

    @classmethod
    def from_pb(cls, message: pb.Appetite) -> Wanted:
        """Reads the message.

        Raises:
            WireError: a value is out of its range.
        """
        if len(message.learner_run_id) != RUN_ID_BYTES:
            raise WireError(f"appetite: a learner_run_id of {len(message.learner_run_id)} bytes")
        if not (math.isfinite(message.steps_per_s) and message.steps_per_s >= 0.0):
            raise WireError(f"appetite: steps_per_s is {message.steps_per_s}")
        if message.oldest_version >= _TOO_MANY:
            raise WireError(f"appetite: oldest_version {message.oldest_version} is out of range")
        return cls(
            message.learner_run_id,
            message.sent_seq,
            message.oldest_version,
            message.steps_per_s,
            frozenset(message.codecs),
        )


class Appetite:
    """What the learner wants now. Any thread may ask.

    appetite = Appetite(lapse_s=10.0)
    appetite.note(Wanted.from_pb(message))
    appetite.oldest_version, appetite.steps_per_s
    """

    def __init__(self, *, lapse_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was said yet.

        Args:
            lapse_s: seconds after which what was said no longer counts; 0 never heeds it.
            clock: monotonic, seconds.
        """
        self._lapse_s = lapse_s
        self._clock = clock
        self._news = threading.Condition()
        self._wanted: Wanted | None = None
        self._heard_s = -math.inf
        self._past: deque[bytes] = deque(maxlen=MAX_PAST_LEARNERS)

    def note(self, wanted: Wanted) -> bool:
        """Takes what a learner said; False when it was said before what is known."""
        with self._news:
            known = self._wanted
            if wanted.learner_run_id in self._past:
                return False
            if known is not None:
                same = known.learner_run_id == wanted.learner_run_id
                if same and wanted.sent_seq <= known.sent_seq:
                    return False
                if not same:
                    self._past.append(known.learner_run_id)
            self._wanted, self._heard_s = wanted, self._clock()
            self._news.notify_all()
            return True

    @property
    def oldest_version(self) -> int:
        """Chunks of versions before it are of no use; 0: nobody says so now."""
        wanted = self._standing()
        return 0 if wanted is None else wanted.oldest_version

    @property
    def steps_per_s(self) -> float:
        """Transitions a second that are wanted; 0: as many as there are."""
        wanted = self._standing()
        return 0.0 if wanted is None else wanted.steps_per_s

    @property
    def codecs(self) -> frozenset[int]:
        """Of chunks that the learner read when it was heard last; this does not lapse."""
        wanted = self._wanted
        return frozenset() if wanted is None else wanted.codecs

    def wait(self, timeout_s: float) -> None:
        """Waits until the learner says something, or time is up."""
        with self._news:
            self._news.wait(timeout_s)

    def _standing(self) -> Wanted | None:
        with self._news:
            lapsed = self._clock() - self._heard_s >= self._lapse_s
            return None if lapsed else self._wanted


class Pacer:
    """Holds the control thread back between chunks, to the rate that is wanted.

    It waits for the clock and never for the network: without a standing appetite it waits not at
    all, and neither does it once a higher rate is wanted.

    pacer = Pacer(appetite)
    chunk = actor.rollout(policy, stop)
    pacer.wait(chunk.transitions, stop)
    """

    def __init__(self, appetite: Appetite, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Owes nothing.

        Args:
            appetite: the rate.
            clock: monotonic, seconds.
        """
        self._appetite = appetite
        self._clock = clock
        self._due_s = clock()

    def wait(
        self,
        transitions: int,
        stop: threading.Event,
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        """Waits until the chunk that was just made is due, or `stop` is set.

        Args:
            transitions: that the chunk holds.
            stop: ends the wait.
            beat: called again and again meanwhile.
        """
        entered_s, before_s = self._clock(), self._due_s
        while not stop.is_set():
            beat()
            rate = self._appetite.steps_per_s
            if rate <= 0.0:
                self._due_s = self._clock()
                return
            self._due_s = due_s(before_s, entered_s, transitions / rate)
            left_s = self._due_s - self._clock()
            if left_s <= 0.0:
                return
            self._appetite.wait(min(left_s, STOP_CHECK_S))


def due_s(before_s: float, made_s: float, period_s: float) -> float:
    """The deadline of a chunk: one period after the one before, so that delays do not add up.

    Time that was lost is made up for by one period at most: a burst is what was not wanted.

    Args:
        before_s: the deadline of the chunk before.
        made_s: when the chunk was made.
        period_s: how long its transitions last at the wanted rate.
    """
    return max(before_s, made_s - period_s) + period_s
