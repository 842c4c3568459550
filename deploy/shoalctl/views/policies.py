"""The published policies of a fleet, for people and programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import cast

from shoal.errors import ShoalError
from shoal.v1 import fleet_pb2
from shoalctl.output import NOTHING, Column, Item, Listing, Value, size
from shoalctl.views.cells import (
    age,
    age_text,
    aged,
    ago,
    bytes_cell,
    count,
    number,
    plain,
    short,
    text,
)


def policy_list(policies: Iterable[fleet_pb2.PolicyInfo]) -> Listing:
    """`shoal policy ls`."""
    return Listing(
        schema="shoal.v1.PolicyList",
        items=[policy_item(policy) for policy in policies],
        columns=_POLICY_COLUMNS,
        empty="no policy was published yet",
    )


def policy_item(
    policy: fleet_pb2.PolicyInfo, devices: Iterable[fleet_pb2.Device] = ()
) -> dict[str, Value]:
    """One published policy version; `devices` say in which precision they act with it."""
    acting = {device.device_id: device.telemetry.active_precision for device in devices}
    return {
        "version": policy.version,
        "digest": policy.digest.hex(),
        "graph_digest": policy.graph_digest.hex(),
        "updates": policy.updates,
        "precision": policy.precision,
        "kl_quantization": policy.kl_quantization,
        "kl_staleness": policy.kl_staleness if policy.HasField("kl_staleness") else None,
        "agreement": policy.agreement,
        "tensors_bytes": policy.tensors_bytes,
        "fp32_bytes": policy.fp32_bytes,
        "bundle_bytes": policy.bundle_bytes,
        "devices_active": policy.devices_active,
        "active_devices": list(policy.active_devices),
        "active_precisions": {name: acting.get(name) or None for name in policy.active_devices},
        "reason": policy.reason,
        "pinned": policy.pinned,
        "signed_by": "delegate" if policy.delegation_generation else "policy key",
        "delegation_generation": policy.delegation_generation or None,
        "delegation_not_after_unix_s": policy.delegation_not_after_unix_s or None,
        "created_unix_ms": policy.created_unix_ms,
        "age_s": age(policy.age_s),
    }


def policy_of(
    policies: Sequence[fleet_pb2.PolicyInfo], version: int | None
) -> fleet_pb2.PolicyInfo:
    """The policy of that version; None: the newest.

    Raises:
        ShoalError: There is none; it names the nearest.
    """
    known = {policy.version: policy for policy in policies}
    if not known:
        raise ShoalError("no policy was published yet")
    if version is None:
        return known[max(known)]
    if version in known:
        return known[version]
    nearest = min(known, key=lambda one: abs(one - version))
    raise ShoalError(
        f"no policy v{version}: v{min(known)} to v{max(known)} are kept, the nearest is "
        f"v{nearest}; `shoal policy ls` lists them"
    )


def describe_policy(item: Item) -> list[str]:
    """One policy version in lines."""
    created_s = number(item["created_unix_ms"]) / 1000
    created = datetime.fromtimestamp(created_s, UTC).isoformat(sep=" ", timespec="seconds")
    as_is, as_fp32 = number(item["tensors_bytes"]), number(item["fp32_bytes"])
    gap = item["kl_staleness"]
    stale = NOTHING if gap is None else f"{max(0.0, number(gap)):.2e} nats"
    precisions = cast("dict[str, str | None]", item["active_precisions"])
    running = [name + (f" ({acts})" if acts else "") for name, acts in precisions.items()]
    facts = (
        ("Policy", f"v{item['version']}"),
        ("Reason", text(item, "reason")),
        ("Pinned", "until it is unpinned" if item["pinned"] else "no: retention may delete it"),
        ("Created", f"{created} ({ago(age_text(item, 'age_s'))})"),
        ("Updates", f"{item['updates']} of the optimiser"),
        ("Precision", text(item, "precision")),
        (
            "Size",
            (
                f"weights {size(as_is)} ({size(as_fp32)} as fp32), "
                f"a device downloads {size(number(item['bundle_bytes']))}"
            ),
        ),
        ("Gap", f"by quantization {number(item['kl_quantization']):.2e} nats"),
        ("", f"by staleness {stale}"),
        ("Agreement", f"{100 * number(item['agreement']):.1f} % of decisions are those of fp32"),
        ("Signed by", _signed_by(item)),
        ("Digest", text(item, "digest")),
        ("Graph", text(item, "graph_digest")),
        ("Devices", ", ".join(running) or "none runs it"),
    )
    return [f"{title:<15}{fact}" for title, fact in facts]


def _signed_by(item: Item) -> str:
    if item["delegation_generation"] is None:
        return text(item, "signed_by")
    ends = datetime.fromtimestamp(number(item["delegation_not_after_unix_s"]), UTC)
    return (
        f"the delegate of generation {item['delegation_generation']}, whom devices that don't hold "
        f"it yet trust until {ends:%Y-%m-%d %H:%M} UTC"
    )


_POLICY_COLUMNS = (
    Column("NAME", lambda item: f"v{item['version']}"),
    Column("DIGEST", lambda item: short(item, "digest")),
    count("UPDATES", "updates"),
    plain("PRECISION", "precision"),
    Column("KL-QUANT", lambda item: f"{number(item['kl_quantization']):.2e}", right=True),
    count("DEVICES", "devices_active"),
    plain("REASON", "reason"),
    Column("PINNED", lambda item: "yes" if item["pinned"] else NOTHING),
    Column("GRAPH", lambda item: short(item, "graph_digest"), wide=True),
    bytes_cell("SIZE", "bundle_bytes"),
    bytes_cell("FP32", "fp32_bytes"),
    Column(
        "KL-STALE",
        lambda item: (
            NOTHING
            if item["kl_staleness"] is None
            else f"{max(0.0, number(item['kl_staleness'])):.2e}"
        ),
        wide=True,
        right=True,
    ),
    Column("AGREE", lambda item: f"{100 * number(item['agreement']):.1f}%", wide=True, right=True),
    aged("AGE", "age_s"),
)
