"""Tells every device what the learner wants, at an interval and when it changes."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from cloud_learner.config import AppetiteConfig
from cloud_learner.uplink.appetite import Reading, shares, wanted_steps_per_s
from shoal.noise import RUN_ID_BYTES
from shoal.v1 import device_pb2 as pb
from shoal.v1 import trajectory_pb2
from shoal.wire import frame

CODECS: Final = (trajectory_pb2.CODEC_COLUMNS,)
"""Of chunks that a learner reads, besides the one that all do."""
TICKS: Final = 4
"""Looks between two broadcasts: so soon is a change told."""
WINDOW_S: Final = 5.0
"""Seconds over which rates are measured."""
CHANGE: Final = 0.1
"""Relative change of the wanted rate that is told at once."""


class AppetiteBroadcast:
    """Measures what the learner uses, and tells each device its share. Used from the event loop.

    broadcast = AppetiteBroadcast(config, read, oldest_version, present, publish)
    await broadcast.serve()                      # until cancelled
    """

    def __init__(
        self,
        config: AppetiteConfig,
        *,
        read: Callable[[], Reading],
        oldest_version: Callable[[], int],
        present: Callable[[], Mapping[str, float]],
        publish: Callable[[str, bytes], None],
    ) -> None:
        """Wants all there is.

        Args:
            config: How often.
            read: The backlog of this moment.
            oldest_version: The oldest version whose chunks are of use; 0: all are.
            present: Devices that act, and what each makes, transitions a second.
            publish: Sends a framed appetite to a device.
        """
        self._config = config
        self._read = read
        self._oldest_version = oldest_version
        self._present = present
        self._publish = publish
        self._learner_run_id = secrets.token_bytes(RUN_ID_BYTES)
        self._sent_seq = 0
        self._readings: deque[Reading] = deque()
        self._wanted = 0.0
        self._told = 0.0
        self._told_s: float | None = None

    @property
    def wanted_steps_per_s(self) -> float:
        """Of the whole fleet; 0: as many as it makes."""
        return self._wanted

    async def serve(self) -> None:
        """Tells, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(self._config.interval_s / TICKS)

    def look(self) -> None:
        """Measures, and tells when it is time or what is wanted has changed."""
        now = self._read()
        self._readings.append(now)
        while len(self._readings) > 2 and now.at_s - self._readings[1].at_s >= WINDOW_S:  # noqa: PLR2004 - both ends
            self._readings.popleft()
        if self._config.limit_rate:
            self._wanted = wanted_steps_per_s(self._wanted, tuple(self._readings))
        due = self._told_s is None or now.at_s - self._told_s >= self._config.interval_s
        if due or _changed(self._told, self._wanted):
            self._tell(now.at_s)

    def _tell(self, now_s: float) -> None:
        self._told, self._told_s = self._wanted, now_s
        oldest = self._oldest_version()
        for device_id, rate in shares(self._wanted, self._present()).items():
            self._sent_seq += 1
            appetite = pb.Appetite(
                oldest_version=oldest,
                steps_per_s=rate,
                sent_seq=self._sent_seq,
                learner_run_id=self._learner_run_id,
                codecs=CODECS,
            )
            self._publish(device_id, frame(appetite))


def _changed(told: float, wanted: float) -> bool:
    return abs(wanted - told) > CHANGE * max(wanted, told)
