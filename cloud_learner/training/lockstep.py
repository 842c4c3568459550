"""Lockstep: learner and devices wait for each other.

A batch is exactly the chunks that every device made under the newest version, in the order of
their keys; its updates give the next version, for which all devices wait. A roster says who takes
part. With a fixed number of devices every version depends on the ones before it alone, whatever
order chunks arrive in. Devices have to keep to it: each with the same `run_id` in every run, as
that keys its noise, with as many chunks a version as are waited for here, all of one length, and
with no limit to how long they wait for the next version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted, collate
from cloud_learner.training.roster import Roster
from cloud_learner.training.source import Backlog, Bell, Draw, Moment, Stepped
from shoal.ranges import Ranges

if TYPE_CHECKING:
    from cloud_learner.training.learner import Learner


@dataclass(frozen=True, slots=True)
class Turn:
    """How far the next batch has come.

    Attributes:
        version: The policy version it is made under.
        devices: How many take part.
        chunks: How many each makes.
        made: Chunks by device, of those that took part in this version or the one before.
        lengths: T of the first chunk under this version, by device: all have to be the same.
        learning: Whether the batch is taken already, and its version not yet published.
        missing: Who is waited for, by name, as far as names are known.
    """

    version: int
    devices: int
    chunks: int
    made: Mapping[str, int]
    lengths: Mapping[str, int]
    learning: bool
    missing: Sequence[str] = ()


class Lockstep:
    """Chunks wait here until all devices have made theirs; then they are one batch.

    Chunks of an earlier version, of another length than the first, or beyond the number waited for
    leave as expired. Used from the event loop.

    >>> replay = Lockstep(FixedRoster(4), chunks=2, version=lambda: versions.highest)
    >>> replay.add(admitted)
    >>> replay.step(learner, replay.take(Moment(learner.updates)))
    """

    def __init__(
        self,
        roster: Roster,
        *,
        chunks: int,
        version: Callable[[], int],
        cursor: Cursor | None = None,
    ) -> None:
        """Starts empty.

        Args:
            roster: Who takes part.
            chunks: How many each makes under one version.
            version: The newest version published.
            cursor: Which journal positions are done with already.
        """
        self._roster = roster
        self._chunks = chunks
        self._version = version
        self._waiting: dict[int, Admitted] = {}
        self._taken_version = 0
        self._last_version_of: dict[str, int] = {}
        self._position = cursor.position if cursor is not None else 0
        self._changed = Bell()

    @property
    def steps(self) -> int:
        """Transitions that wait."""
        return sum(item.chunk.transitions for item in self._waiting.values())

    @property
    def fill(self) -> float:
        """How many of the chunks of the next batch are there, 0 to 1."""
        present = sum(min(len(line), self._chunks) for line in self._by_device().values())
        expected = self._roster.expected(self._version()) * self._chunks
        return min(1.0, present / max(1, expected))

    @property
    def backlog(self) -> Backlog:
        """None, ever: devices make what is waited for, and wait themselves."""
        return Backlog(0, 1, 0)

    @property
    def cursor(self) -> Cursor:
        """Which journal positions are done with, for a checkpoint."""
        waiting = (position for position in self._waiting if position <= self._position)
        return Cursor(self._position, Ranges.of(waiting))

    def add(self, items: Iterable[Admitted]) -> None:
        """Takes chunks in."""
        for item in items:
            self._waiting[item.position] = item
            device, version = item.key.device_id, item.chunk.policy_version
            last = self._last_version_of.get(device, 0)
            self._last_version_of[device] = max(last, version)
        self._changed.ring()

    def ready(self) -> bool:
        """Whether all devices have made their chunks."""
        return bool(self._batch())

    async def wait_ready(self, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Waits until a batch is there, or ``unless`` holds."""
        await self._changed.wait_for(lambda: self.ready() or unless())

    def wake(self) -> None:
        """Has whoever waits look again at what it waits for."""
        self._changed.ring()

    def take(self, moment: Moment) -> Draw:  # noqa: ARG002 - none of them lags
        """Takes out the batch; all else that waits is of no further use and has expired."""
        taken = self._batch()
        if not taken:
            return Draw((), (), work=False)
        chosen = {item.position for item in taken}
        left = sorted(self._waiting.keys() - chosen)
        draw = Draw(taken, tuple(self._waiting[position] for position in left), work=True)
        self._position = max(self._position, *self._waiting)
        self._taken_version = taken[0].chunk.policy_version
        self._waiting.clear()
        return draw

    def step(self, learner: Learner, draw: Draw) -> Stepped:
        """Trains from the batch."""
        batch = collate(draw.taken, updates_now=learner.updates)
        return Stepped(batch, batch.transitions, batch.lags, learner.step(batch))

    def state_dict(self) -> Mapping[str, object]:
        """Nothing: what waits here comes back from the journal."""
        return {}

    def turn(self) -> Turn:
        """How far the next batch has come."""
        version = self._version()
        lines = self._by_device()
        recent = {self._taken_version, version}
        known = [device for device, last in self._last_version_of.items() if last in recent]
        return Turn(
            version=version,
            devices=self._roster.expected(version),
            chunks=self._chunks,
            made={device: len(lines.get(device, ())) for device in sorted({*known, *lines})},
            lengths={item.key.device_id: item.chunk.steps for item in self._present(version)},
            learning=version == self._taken_version,
            missing=self._roster.missing(version, self._full(lines)),
        )

    def _batch(self) -> tuple[Admitted, ...]:
        """The next batch in order; empty while one is missing."""
        full = self._full(self._by_device())
        names = self._roster.batch(self._version(), full)
        return tuple(item for name in names for item in full[name])

    def _full(self, lines: Mapping[str, list[Admitted]]) -> dict[str, list[Admitted]]:
        """By device that has made all its chunks: these."""
        return {
            device: line[: self._chunks]
            for device, line in lines.items()
            if len(line) >= self._chunks
        }

    def _by_device(self) -> dict[str, list[Admitted]]:
        """Chunks of the newest version by device, each in the order of its keys."""
        present = self._present(self._version())
        length = present[0].chunk.steps if present else 0
        lines: dict[str, list[Admitted]] = defaultdict(list)
        for item in present:
            if item.chunk.steps == length:
                lines[item.key.device_id].append(item)
        return lines

    def _present(self, version: int) -> list[Admitted]:
        """Chunks of a version in the order of their keys."""
        present = [i for i in self._waiting.values() if i.chunk.policy_version == version]
        return sorted(present, key=lambda item: item.key)
