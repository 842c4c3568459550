"""What a demo shows at its end: one envelope, made of what the fleet itself reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from cloud_learner.training.published_score import Score
from shoal.v1 import fleet_pb2

SCHEMA = "shoal.v1.DemoResult"


class End(StrEnum):
    """Why a demo ended."""

    SOLVED = "solved"
    STEPS = "steps"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Solved:
    """The moment the mean return first reached the threshold.

    Attributes:
        env_steps: Environment steps until then.
        wall_s: From the start of the command.
    """

    env_steps: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a demo went.

    Attributes:
        algorithm: Its short name or dotted path.
        solved: When the mean return reached the threshold; None if it never did.
        ended: Why it ended.
        wall_s: From the start of the command to the moment it ended.
        threshold: Mean return of the last 100 episodes that counts as solved; None: nothing does.
        published: What others have published.
        restarts: Times each process was started again after it died.
    """

    env_id: str
    algorithm: str
    seed: int
    solved: Solved | None
    ended: End
    wall_s: float
    threshold: float | None
    published: Score | None
    restarts: dict[str, int]


@dataclass(slots=True)
class Meter:
    """A counter that goes on where it was when its source starts again from 0.

    meter.reading(70), meter.reading(5) == 70, 75
    """

    _before: int = 0
    _last: int = 0

    def reading(self, value: int) -> int:
        """The whole count, given the source's own."""
        if value < self._last:
            self._before += self._last
        self._last = value
        return self._before + value


def is_solved(training: fleet_pb2.Training, threshold: float | None, window: int = 100) -> bool:
    """Whether the mean return over a full window of episodes reached the threshold."""
    if threshold is None:
        return False
    return training.return_window >= window and training.return_mean >= threshold


def result_envelope(
    outcome: Outcome,
    training: fleet_pb2.Training,
    devices: Sequence[fleet_pb2.Device],
    audit: fleet_pb2.Audit,
) -> dict[str, object]:
    """The envelope that `-o json` prints."""
    return {
        "schema": SCHEMA,
        "env": outcome.env_id,
        "algorithm": outcome.algorithm,
        "seed": outcome.seed,
        "solved": outcome.solved is not None,
        "solved_at": None if outcome.solved is None else asdict(outcome.solved),
        "ended": str(outcome.ended),
        "wall_s": round(outcome.wall_s, 3),
        "threshold": outcome.threshold,
        "published": None
        if outcome.published is None
        else {**asdict(outcome.published), "text": outcome.published.text},
        "env_steps": training.env_steps,
        "episodes": training.episodes,
        "return_mean": number(training.return_mean) if training.episodes else None,
        "updates": training.updates,
        "policy_versions": training.policy_version,
        "devices": [_device(device) for device in devices],
        "audit": audit_fields(audit),
        "quantization": {
            "precision": training.precision,
            "kl_quantization": training.kl_quantization,
            "kl_staleness": training.kl_staleness,
        },
        "lag": {"p50": training.lag_p50, "p99": training.lag_p99, "max": training.lag_max},
        "bytes": {
            "up": training.bytes_up,
            "down": training.bytes_down,
            "down_fp32_equivalent": training.bytes_down_fp32,
        },
        "gradients": {
            name: count for name, count in training.counters.items() if name.startswith("updates_")
        },
        "restarts": outcome.restarts,
    }


def number(value: float) -> float | None:
    """A number for JSON, which has no NaN: None before there is one."""
    return round(value, 3) if math.isfinite(value) else None


def audit_fields(audit: fleet_pb2.Audit) -> dict[str, object]:
    """The audit as plain values."""
    return {
        "produced": audit.produced,
        "trained": audit.trained,
        "expired": audit.expired,
        "dropped": audit.dropped,
        "rejected": audit.rejected,
        "in_flight": audit.in_flight,
        "balanced": audit.balanced,
    }


def _device(device: fleet_pb2.Device) -> dict[str, object]:
    report = device.telemetry
    return {
        "device_id": device.device_id,
        "active_version": report.active_version,
        "active_digest": report.active_digest.hex(),
        "swaps": report.swaps,
        "swap_ms_p99": round(report.swap_ms_p99, 3),
        "env_steps": report.env_steps,
        "rss_bytes": report.rss_bytes,
    }
