"""Who keeps what happened, as the rooms that tell of it see it."""

from __future__ import annotations

from typing import Protocol

from shoal.v1 import device_pb2


class Teller(Protocol):
    """Who keeps events; `cloud_learner.fleet.fleet.Fleet` does."""

    def record(
        self,
        device_id: str,
        name: str,
        message: str,
        *,
        severity: device_pb2.Severity,
        **fields: str,
    ) -> None:
        """Keeps an event."""
