"""Samples of what operators are told of events; see `samples.py`."""

from __future__ import annotations

from google.protobuf.message import Message
from strategies import RUN_ID
from wire.fleet_samples import event_sample

from shoal.v1 import events_pb2


def fleet_event_samples() -> dict[str, Message]:
    event = events_pb2.FleetEvent(
        place=7, event=event_sample(), source="device", about="pi-1", age_s=1.5
    )
    return {
        "FleetEvent": event,
        "ListEventsRequest": events_pb2.ListEventsRequest(
            fleet="reef",
            about="pi-1",
            kinds=["policy_rejected.signature", "client_refused"],
            max_age_s=3600.0,
            limit=200,
        ),
        "ListEventsResponse": events_pb2.ListEventsResponse(
            events=[event],
            counters={"device.policy_rejected.signature": 2},
            log_id=RUN_ID,
            newest_place=9,
        ),
        "WatchEventsRequest": events_pb2.WatchEventsRequest(
            fleet="reef", about="pi-1", kinds=["client_refused"], after_place=9, log_id=RUN_ID
        ),
        "WatchEventsResponse": events_pb2.WatchEventsResponse(event=event, log_id=RUN_ID),
    }
