"""Tokens, devices, requests and events as an operator sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoalctl.enrollment.store import DeviceRecord, EventRecord, RequestRecord
from shoalctl.enrollment.tokens import TokenRecord
from shoalctl.output import NOTHING, Column, Item, Listing, duration


def token_list(tokens: Sequence[TokenRecord], *, now_s: float) -> Listing:
    """Tokens, without their secrets."""
    items: list[Item] = [
        {
            "id": each.id,
            "state": each.state(now_s),
            "device": each.device_id,
            "used": each.used,
            "uses": each.uses,
            "replace": each.replace,
            "expires_in_s": max(0.0, each.expires_s - now_s),
            "age_s": now_s - each.created_s,
        }
        for each in tokens
    ]
    columns = (
        Column("ID", lambda item: str(item["id"])),
        Column("STATE", lambda item: str(item["state"])),
        Column("DEVICE", lambda item: str(item["device"] or "any")),
        Column("USED", lambda item: f"{item['used']}/{item['uses']}", right=True),
        Column("REPLACE", lambda item: "yes" if item["replace"] else "no", wide=True),
        Column("EXPIRES IN", lambda item: _length(item, "expires_in_s"), right=True),
        Column("AGE", lambda item: _length(item, "age_s"), right=True),
    )
    return Listing(
        "shoal.v1.TokenList", items, columns, "No tokens: `shoal enroll token create` makes one."
    )


def device_list(devices: Sequence[DeviceRecord], *, now_s: float) -> Listing:
    """Devices that were enrolled."""
    items: list[Item] = [
        {
            "device_id": each.device_id,
            "state": "revoked" if each.revoked_s is not None else "member",
            "enrolled_by": each.enrolled_by,
            "key": each.key_digest.hex(),
            "expires_in_s": each.expires_s - now_s,
            "age_s": now_s - each.enrolled_s,
        }
        for each in devices
    ]
    columns = (
        Column("NAME", lambda item: str(item["device_id"])),
        Column("STATE", lambda item: str(item["state"])),
        Column("BY", lambda item: str(item["enrolled_by"])),
        Column("KEY", lambda item: str(item["key"]), wide=True),
        Column("EXPIRES IN", lambda item: _length(item, "expires_in_s"), right=True),
        Column("AGE", lambda item: _length(item, "age_s"), right=True),
    )
    return Listing("shoal.v1.EnrolledDeviceList", items, columns, "No device was enrolled yet.")


def request_list(requests: Sequence[RequestRecord], *, now_s: float) -> Listing:
    """Devices that wait for an operator."""
    items: list[Item] = [
        {
            "device_id": each.device_id,
            "state": each.state,
            "address": each.address,
            "key": each.key_digest.hex(),
            "age_s": now_s - each.created_s,
        }
        for each in requests
    ]
    columns = (
        Column("NAME", lambda item: str(item["device_id"])),
        Column("STATE", lambda item: str(item["state"])),
        Column("ADDRESS", lambda item: str(item["address"])),
        Column("KEY", lambda item: str(item["key"])[:16]),
        Column("AGE", lambda item: _length(item, "age_s"), right=True),
    )
    return Listing("shoal.v1.EnrollmentRequestList", items, columns, "No device waits.")


def event_list(
    events: Sequence[EventRecord], counters: Mapping[str, int], *, now_s: float
) -> Listing:
    """What happened, and how often."""
    items: list[Item] = [
        {
            "seq": each.seq,
            "severity": each.severity,
            "name": each.name,
            "reason": each.fields.get("reason"),
            "device_id": each.device_id,
            "message": each.message,
            "fields": dict(each.fields),
            "age_s": now_s - each.unix_s,
        }
        for each in events
    ]
    columns = (
        Column("SEVERITY", lambda item: str(item["severity"])),
        Column("EVENT", lambda item: str(item["name"])),
        Column("REASON", lambda item: str(item["reason"] or NOTHING)),
        Column("DEVICE", lambda item: str(item["device_id"] or NOTHING)),
        Column("MESSAGE", lambda item: str(item["message"])),
        Column("AGE", lambda item: _length(item, "age_s"), right=True),
    )
    return Listing(
        "shoal.v1.EnrollmentEventList",
        items,
        columns,
        "Nothing happened yet.",
        extra={"counters": dict(counters)},
    )


def _length(item: Item, key: str) -> str:
    value = item[key]
    return duration(float(value)) if isinstance(value, int | float) else NOTHING
