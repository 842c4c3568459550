"""Notices a subscription through which chunks no longer come, though devices hold some."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from cloud_learner.fleet.fleet import Fleet
from cloud_learner.uplink.ingest import Ingest
from cloud_learner.uplink.subscriber import Subscriber


@dataclass(frozen=True, slots=True)
class Heard:
    """When what was last heard, in monotonic seconds.

    Attributes:
        connected_s: Since when the subscription stands; None when it does not.
        chunk_s: The last trajectory message; None: never.
        report_s: The last status, telemetry or event; None: never.
        waiting: Chunks that devices which are here now say they hold.
    """

    connected_s: float | None
    chunk_s: float | None
    report_s: float | None
    waiting: int


def needs_renewal(heard: Heard, *, now_s: float, after_s: float) -> bool:
    """Whether the session is broken: devices report and hold chunks, yet none came for `after_s`.

    Some brokers stop serving the QoS 1 part of a session until the client comes under another id.
    """
    if heard.connected_s is None or heard.report_s is None or heard.waiting == 0:
        return False
    silent_since_s = max(heard.connected_s, heard.chunk_s or heard.connected_s)
    return heard.report_s > silent_since_s and now_s - silent_since_s >= after_s


async def watch_session(
    subscriber: Subscriber,
    ingest: Ingest,
    fleet: Fleet,
    *,
    after_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Renews the session when it needs it, until cancelled."""
    while True:
        await asyncio.sleep(after_s / 4)
        here = fleet.present()
        audits = fleet.audits().items()
        heard = Heard(
            connected_s=subscriber.connected_s,
            chunk_s=ingest.last_chunk_s,
            report_s=ingest.last_report_s,
            waiting=sum(audit.in_flight for device_id, audit in audits if device_id in here),
        )
        if needs_renewal(heard, now_s=clock(), after_s=after_s):
            fleet.record(
                "learner",
                "session_renewed",
                f"devices hold {heard.waiting} chunks and none came for {after_s:.0f} s: "
                "the session with the broker is replaced",
            )
            subscriber.renew()
