"""Samples of `slot.proto`, and of what carries its message, for `samples.py`."""

from __future__ import annotations

from google.protobuf.message import Message
from strategies import DIGEST

from shoal.v1 import device_pb2, slot_pb2


def slot_samples(status: device_pb2.Status, telemetry: device_pb2.Telemetry) -> dict[str, Message]:
    """A slot on trial, in each report that tells of it.

    Args:
        status: Of a device without slots.
        telemetry: The same.
    """
    report = slot_pb2.SlotReport(
        slot="b",
        bundle_version="0.2.0",
        digest=DIGEST,
        trial=slot_pb2.TRIAL_STATE_ON_TRIAL,
        deaths=1,
        held="no policy",
        last="died b: it ended with code 5",
    )
    born, measured = device_pb2.Status(), device_pb2.Telemetry()
    born.CopyFrom(status)
    born.slot.CopyFrom(report)
    measured.CopyFrom(telemetry)
    measured.slot.CopyFrom(report)
    return {"SlotReport": report, "Status.slot": born, "Telemetry.slot": measured}
