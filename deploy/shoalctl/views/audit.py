"""What became of a fleet's chunks, for people and programs."""

from __future__ import annotations

from shoal.v1 import fleet_pb2
from shoalctl.output import Column, Item, Listing, Value
from shoalctl.views.cells import age, aged, count, plain

AUDIT_COUNTS = ("produced", "trained", "expired", "dropped", "rejected", "in_flight")
TOTAL = "TOTAL"


def audit_list(response: fleet_pb2.AuditResponse) -> Listing:
    """`shoal fleet audit`."""
    total = audit_item(response.total)
    items: list[Item] = [
        {
            "device_id": entry.device_id,
            **audit_item(entry.audit),
            "telemetry_age_s": age(entry.telemetry_age_s),
        }
        for entry in response.devices
    ]
    ages = [entry["telemetry_age_s"] for entry in items]
    oldest = max((value for value in ages if isinstance(value, float)), default=None)
    return Listing(
        schema="shoal.v1.Audit",
        items=items,
        columns=_AUDIT_COLUMNS,
        empty="no device has produced anything yet",
        extra={"total": total},
        summary=[{"device_id": TOTAL, **total, "telemetry_age_s": oldest}],
    )


def audit_item(audit: fleet_pb2.Audit) -> dict[str, Value]:
    """What became of chunks: all counts, and whether they add up."""
    return {
        "produced": audit.produced,
        "trained": audit.trained,
        "expired": audit.expired,
        "dropped": audit.dropped,
        "rejected": audit.rejected,
        "in_flight": audit.in_flight,
        "balanced": audit.balanced,
    }


_AUDIT_COLUMNS = (
    plain("NAME", "device_id"),
    *(count(name.replace("_", "-").upper(), name) for name in AUDIT_COUNTS),
    Column("BALANCED", lambda item: "yes" if item["balanced"] else "NO"),
    aged("AGE", "telemetry_age_s"),
)
