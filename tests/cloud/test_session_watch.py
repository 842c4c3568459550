from __future__ import annotations

import asyncio
from typing import cast

import pytest
from fleet_world import LOST, ONLINE, SPEC, World, status
from sim import SimDevice, on_loop

from cloud_learner.uplink.arrivals import Birth
from cloud_learner.uplink.ingest import Ingest
from cloud_learner.uplink.session_watch import Heard, needs_renewal, watch_session
from cloud_learner.uplink.subscriber import Subscriber
from shoal.v1 import device_pb2 as pb


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (Heard(connected_s=0.0, chunk_s=10.0, report_s=99.0, waiting=3), True),
        (Heard(connected_s=0.0, chunk_s=None, report_s=99.0, waiting=3), True),
        (Heard(connected_s=0.0, chunk_s=10.0, report_s=99.0, waiting=0), False),
        (Heard(connected_s=0.0, chunk_s=90.0, report_s=99.0, waiting=3), False),
        (Heard(connected_s=90.0, chunk_s=10.0, report_s=99.0, waiting=3), False),
        (Heard(connected_s=None, chunk_s=10.0, report_s=99.0, waiting=3), False),
        (Heard(connected_s=0.0, chunk_s=10.0, report_s=None, waiting=3), False),
        (Heard(connected_s=0.0, chunk_s=10.0, report_s=5.0, waiting=3), False),
    ],
)
def test_a_session_is_renewed_only_if_devices_report_and_hold_chunks_that_do_not_come(
    heard: Heard, *, expected: bool
) -> None:
    assert needs_renewal(heard, now_s=100.0, after_s=60.0) is expected


class Heeded:
    """A learner that hears reports and no chunks, for an hour; counts how often it renews."""

    connected_s = 0.0
    last_chunk_s = None
    last_report_s = 1.0

    def __init__(self) -> None:
        self.renewals = 0

    def renew(self) -> None:
        self.renewals += 1


@pytest.mark.parametrize(("here", "renewals"), [(LOST, 0), (ONLINE, 1)])
def test_what_a_device_that_is_away_holds_renews_no_session(
    here: pb.DeviceState, renewals: int
) -> None:
    @on_loop
    async def scenario() -> None:
        world, heeded, device = World(), Heeded(), SimDevice("pi-1")
        run_id = device.run.run_id
        world.fleet.note_status(Birth(status(ONLINE, run_id), SPEC))
        device.produce(b"a chunk")
        world.hear(device)
        assert world.fleet.audits()["pi-1"].in_flight == 1
        world.fleet.note_status(Birth(status(here, run_id), SPEC if here == ONLINE else None))
        watching = asyncio.create_task(
            watch_session(
                cast("Subscriber", heeded),
                cast("Ingest", heeded),
                world.fleet,
                after_s=0.01,
                clock=lambda: 3600.0,
            )
        )
        done, _ = await asyncio.wait([watching], timeout=0.02)
        assert not done
        watching.cancel()
        assert min(1, heeded.renewals) == renewals

    scenario()
