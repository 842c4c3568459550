"""Policy payload sent, by device."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Traffic:
    """Policy payload sent since the learner started.

    Attributes:
        bytes_down: Payload bytes: policies and graphs, complete or not.
        bytes_down_fp32: What the complete refreshes would have been as fp32 weights.
        refreshes: Policies sent completely.
    """

    bytes_down: int = 0
    bytes_down_fp32: int = 0
    refreshes: int = 0


class TrafficMeter:
    """Counts what is sent.

    meter.count("pi-1", len(part.data))
    meter.of("pi-1").bytes_down
    """

    def __init__(self) -> None:
        self._sent: dict[str, Traffic] = {}

    def count(self, name: str, size: int) -> None:
        """Adds payload bytes sent to a caller."""
        sent = self.of(name)
        self._sent[name] = replace(sent, bytes_down=sent.bytes_down + size)

    def count_refresh(self, name: str, fp32_bytes: int) -> None:
        """Adds a policy sent completely, and what it would have been as fp32."""
        sent = self.of(name)
        self._sent[name] = replace(
            sent,
            bytes_down_fp32=sent.bytes_down_fp32 + fp32_bytes,
            refreshes=sent.refreshes + 1,
        )

    def count_fp32(self, name: str, size: int) -> None:
        """Adds payload bytes of weights that are sent as fp32."""
        sent = self.of(name)
        self._sent[name] = replace(
            sent,
            bytes_down=sent.bytes_down + size,
            bytes_down_fp32=sent.bytes_down_fp32 + size,
        )

    def of(self, name: str) -> Traffic:
        """What one caller was sent."""
        return self._sent.get(name, Traffic())

    def total(self) -> Traffic:
        """What all callers were sent."""
        sent = self._sent.values()
        return Traffic(
            bytes_down=sum(traffic.bytes_down for traffic in sent),
            bytes_down_fp32=sum(traffic.bytes_down_fp32 for traffic in sent),
            refreshes=sum(traffic.refreshes for traffic in sent),
        )
