"""What is done with a gradient that a device pushed: the rules, as functions of values."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.journal.audit import RunKey

WINDOW: Final = 64
"""Numbers of a run below its highest that can still be told apart."""
MAX_RUNS: Final = 65_536
"""Runs that are remembered, the latest: about 10 MB."""


class Outcome(StrEnum):
    """What became of a pushed gradient: applied, or why not."""

    APPLIED = "applied"
    LAG = "lag"
    NON_FINITE = "non_finite"
    NORM = "norm"
    LAYOUT = "layout"
    DUPLICATE = "duplicate"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision about one gradient.

    Attributes:
        outcome: Applied, or why not.
        gain: What the gradient is multiplied by: 1, or less where it is clipped.
        rate: What the learning rate is multiplied by, for its lag.
    """

    outcome: Outcome
    gain: float = 1.0
    rate: float = 1.0


def judge(lag: int, norm: float, config: GradientsConfig) -> Verdict:
    """Decides about a gradient of the right layout whose numbers are finite.

    The further behind, the less far it steps: (1 + lag)^-a (Xie, Koyejo & Gupta 2019,
    "Asynchronous federated optimization", section 5.2, polynomial; a = 1 is Zhang et al. 2016,
    "Staleness-aware async-SGD for distributed deep learning", equation 6, but for the 1). It is the
    learning rate that it multiplies: Adam would divide a factor on the gradient out again.

    Args:
        lag: Updates applied since the weights it was computed at; below 0 it is of weights that
            were lost with a learner, and is refused.
        norm: Its norm.
        config: The bounds.
    """
    if not 0 <= lag <= config.max_lag:
        return Verdict(Outcome.LAG)
    if not math.isfinite(norm):
        return Verdict(Outcome.NON_FINITE)
    if norm > config.max_norm:
        return Verdict(Outcome.NORM)
    gain = min(1.0, config.clip_norm / norm) if norm > 0.0 else 1.0
    return Verdict(Outcome.APPLIED, gain, (1.0 + lag) ** -config.lag_scaling)


def learning_rate(config: GradientsConfig, updates: int) -> float:
    """What the schedule says after so many updates."""
    start, final, total = config.learning_rate, config.final_learning_rate, config.anneal_updates
    if final is None or total == 0:
        return start
    return start + min(1.0, updates / total) * (final - start)


class Seen:
    """Which updates came already, in bounded memory; what it can't tell apart, it calls seen.

    >>> seen = Seen()
    >>> seen.note(run, 0), seen.note(run, 0)
    (True, False)
    """

    def __init__(self, *, runs: int = MAX_RUNS) -> None:
        """Has seen nothing.

        Args:
            runs: How many are remembered; of those that pushed longest ago, all is forgotten.
        """
        self._most = runs
        self._runs: OrderedDict[RunKey, tuple[int, int]] = OrderedDict()

    def note(self, run: RunKey, seq: int) -> bool:
        """Notes an update; whether it is new."""
        highest, mask = self._runs.get(run, (-1, 0))
        if seq > highest:
            mask = ((mask << min(seq - highest, WINDOW)) | 1) & ((1 << WINDOW) - 1)
            highest = seq
        else:
            bit = 1 << (highest - seq) if highest - seq < WINDOW else 0
            if not bit or mask & bit:
                return False
            mask |= bit
        self._runs[run] = (highest, mask)
        self._runs.move_to_end(run)
        if len(self._runs) > self._most:
            self._runs.popitem(last=False)
        return True

    def state_dict(self) -> dict[str, str]:
        """What a checkpoint keeps, the latest last."""
        return {
            f"{run.device_id}/{run.run_id.hex()}": f"{highest}/{mask:x}"
            for run, (highest, mask) in self._runs.items()
        }

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Goes on from a checkpoint."""
        for name, text in state.items():
            device_id, _, run_id = name.rpartition("/")
            highest, _, mask = text.partition("/")
            self._runs[RunKey(device_id, bytes.fromhex(run_id))] = (int(highest), int(mask, 16))
