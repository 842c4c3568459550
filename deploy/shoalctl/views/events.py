"""What happened in the fleet, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

from shoal.v1 import device_pb2, events_pb2
from shoalctl.output import NOTHING, Column, Item, Listing, Value, printable
from shoalctl.views.cells import age, aged, plain, slug, text


def event_list(response: events_pb2.ListEventsResponse) -> Listing:
    """`shoal devices events`: newest first, with counts."""
    return Listing(
        schema="shoal.v1.FleetEventList",
        items=[event_item(event) for event in response.events],
        columns=_COLUMNS,
        empty="nothing like that happened since the learner started",
        extra={"counters": dict(sorted(response.counters.items()))},
    )


def event_item(heard: events_pb2.FleetEvent) -> dict[str, Value]:
    """One event."""
    event = heard.event
    return {
        "place": heard.place,
        "device_id": heard.about,
        "source": heard.source,
        "severity": slug(device_pb2.Severity.Name(event.severity), "SEVERITY_"),
        "name": event.name,
        "reason": event.fields.get("reason"),
        "message": event.message,
        "fields": dict(event.fields),
        "run_id": event.run_id.hex(),
        "event_seq": event.event_seq,
        "sent": _time(event.sent_unix_ms),
        "age_s": age(heard.age_s),
    }


def event_line(item: Item) -> str:
    """One event as a line of its own, for who watches."""
    clock = str(item["sent"] or NOTHING).partition("T")[2][:8] or NOTHING
    parts = (clock, text(item, "device_id"), kind(item), f"[{item['source']}]", item["message"])
    return printable("  ".join(str(part) for part in parts))


def kind(item: Item) -> str:
    """`NAME.REASON`, or the name alone: what `--kind` wants."""
    reason = item["reason"]
    return f"{item['name']}.{reason}" if reason else str(item["name"])


def _time(unix_ms: int) -> str | None:
    """By the clock of who told it, for people; None where it is none."""
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return None


def _count(item: Item) -> str:
    fields = cast("Mapping[str, Value]", item["fields"])
    return str(fields.get("count") or 1)


_COLUMNS = (
    plain("NAME", "device_id"),
    Column("KIND", kind),
    plain("SEVERITY", "severity"),
    plain("SOURCE", "source"),
    Column("COUNT", _count, right=True),
    plain("MESSAGE", "message"),
    plain("SENT", "sent", wide=True),
    Column("RUN", lambda item: str(item["run_id"])[:8] or NOTHING, wide=True),
    aged("AGE", "age_s"),
)
