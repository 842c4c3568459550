"""What each run of a device told of its observations last, and all of that together."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from cloud_learner.journal.audit import RunKey
from shoal.errors import CheckpointError, StatisticsRefused
from shoal.observation_statistics import ObservationStatistics, merged

RUNS_OF_DEVICE: Final = 4
"""Of one device, that may still tell more; what is late by more restarts is not counted."""
MAX_RUNS: Final = 16_384
"""Of all devices, that may still tell more; beyond it those that told something longest ago end."""
MAX_BYTES: Final = 64 << 20
"""The same, for observations of many numbers."""
MAX_ENDED: Final = 65_536
"""Runs that are known to have ended: what they tell is in the sum already."""
_RUN_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """The latest of a run, and its number."""

    seq: int
    statistics: ObservationStatistics


class RunStatistics:
    """Statistics that are cumulative within a run: the latest counts, and each run once.

    So what comes twice, late or in another order, or again after a restart, changes nothing. A run
    that ended is merged with others that did, and what it tells from then on is refused. Used from
    the event loop and from the thread of the learner's step.

    runs = RunStatistics(numbers=4)
    runs.note(RunKey("pi-1", run_id), seq, statistics)
    runs.merged()                                        # None while nothing was told
    """

    def __init__(
        self, numbers: int, *, most: int | None = None, begins: ObservationStatistics | None = None
    ) -> None:
        """Was told nothing.

        Args:
            numbers: E, of an observation.
            most: Runs that may still tell more; None for as many as memory allows.
            begins: What was seen before.
        """
        self._numbers = numbers
        self._most = most or max(1, min(MAX_RUNS, MAX_BYTES // (16 * numbers + _RUN_BYTES)))
        self._lock = threading.Lock()
        self._runs: OrderedDict[RunKey, _Told] = OrderedDict()
        self._of_device: dict[str, list[RunKey]] = {}
        self._ended: OrderedDict[RunKey, None] = OrderedDict()
        self._sum = begins

    def __len__(self) -> int:
        """Runs that may still tell more."""
        return len(self._runs)

    def note(self, run: RunKey, seq: int, told: ObservationStatistics) -> None:
        """Takes in what a run told; nothing, where it told as much or more before.

        Args:
            run: Whose it is.
            seq: Of the message; the higher, the later.
            told: Of E numbers.

        Raises:
            StatisticsRefused: It told of more earlier (`backwards`), or it ended (`ended`).
        """
        with self._lock:
            if run in self._ended:
                raise StatisticsRefused(
                    "ended", "statistics: of a run that has ended here, since others told more"
                )
            held = self._runs.get(run)
            if held is not None and seq <= held.seq:
                return
            if held is not None and told.count < held.statistics.count:
                raise StatisticsRefused(
                    "backwards",
                    f"statistics: of {told.count} observations, and the run had "
                    f"{held.statistics.count} before",
                )
            self._put(run, _Told(seq, told))

    def merged(self) -> ObservationStatistics | None:
        """Those of all runs together; None while nothing was told.

        The same, whatever came first of what is held.
        """
        with self._lock:
            runs, before = list(self._runs.items()), self._sum
        parts = [told.statistics for _, told in sorted(runs, key=_key)]
        if before is not None:
            parts.insert(0, before)
        return merged(parts) if parts else None

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint keeps, those that told something last at the end."""
        with self._lock:
            runs, ended, before = list(self._runs.items()), list(self._ended), self._sum
        told = [each.statistics for _, each in runs]
        shape = (len(runs), self._numbers)
        state: dict[str, object] = {
            "runs": [_name(run) for run, _ in runs],
            "seqs": np.array([each.seq for _, each in runs], np.int64),
            "counts": np.array([each.count for each in told], np.int64),
            "means": np.array([each.mean for each in told], np.float64).reshape(shape),
            "squares": np.array([each.squares for each in told], np.float64).reshape(shape),
            "ended": [_name(run) for run in ended],
        }
        if before is not None:
            state["sum"] = {
                "count": before.count,
                "mean": before.mean.copy(),
                "squares": before.squares.copy(),
            }
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from a checkpoint, bit for bit.

        Raises:
            CheckpointError: It is of observations of other numbers.
        """
        means, squares = (np.asarray(state[name]) for name in ("means", "squares"))
        if means.shape[1] != self._numbers:
            raise CheckpointError(
                f"the checkpoint's statistics are of {means.shape[1]} numbers, observations have "
                f"{self._numbers}: use another state_dir"
            )
        saved = state.get("sum")
        runs, seqs, counts, ended = (
            cast("Sequence[Any]", state[name]) for name in ("runs", "seqs", "counts", "ended")
        )
        self._sum = ObservationStatistics(**saved) if isinstance(saved, Mapping) else None
        self._runs.clear()
        self._of_device.clear()
        self._ended = OrderedDict((_run(name), None) for name in ended)
        for name, seq, count, mean, square in zip(runs, seqs, counts, means, squares, strict=True):
            told = ObservationStatistics(int(count), mean.copy(), square.copy())
            self._put(_run(name), _Told(int(seq), told))

    def _put(self, run: RunKey, told: _Told) -> None:
        """Keeps what a run told, and ends the one that told something longest ago, if need be."""
        mine = self._of_device.setdefault(run.device_id, [])
        if run in self._runs:
            mine.remove(run)
        mine.append(run)
        self._runs[run] = told
        self._runs.move_to_end(run)
        if len(mine) > RUNS_OF_DEVICE:
            self._end(mine[0])
        if len(self._runs) > self._most:
            self._end(next(iter(self._runs)))

    def _end(self, run: RunKey) -> None:
        statistics = self._runs.pop(run).statistics
        self._sum = statistics if self._sum is None else merged([self._sum, statistics])
        mine = self._of_device[run.device_id]
        mine.remove(run)
        if not mine:
            del self._of_device[run.device_id]
        self._ended[run] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)


def _key(item: tuple[RunKey, _Told]) -> tuple[str, bytes]:
    return item[0].device_id, item[0].run_id


def _name(run: RunKey) -> str:
    return f"{run.device_id}/{run.run_id.hex()}"


def _run(name: str) -> RunKey:
    device_id, _, run_id = name.rpartition("/")
    return RunKey(device_id, bytes.fromhex(run_id))
