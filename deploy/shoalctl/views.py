"""What an operator sees of a fleet: the server's messages as items, and items as columns.

Pure: messages in, values out. Every value comes with an age, and a program gets the same items
that the tables show.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

from shoal.errors import ShoalError
from shoal.v1 import device_pb2, fleet_pb2
from shoalctl.output import NOTHING, Column, Item, Listing, Value, duration, size

SHORT_DIGEST = 12
AUDIT_COUNTS = ("produced", "trained", "expired", "dropped", "rejected", "in_flight")
TOTAL = "TOTAL"


def device_list(devices: Iterable[fleet_pb2.Device]) -> Listing:
    """`shoal devices ls`."""
    return Listing(
        schema="shoal.v1.DeviceList",
        items=[device_item(device) for device in devices],
        columns=_DEVICE_COLUMNS,
        empty="no device was heard of yet; start one with `shoal agent run`",
    )


def policy_list(policies: Iterable[fleet_pb2.PolicyInfo]) -> Listing:
    """`shoal policy ls`."""
    return Listing(
        schema="shoal.v1.PolicyList",
        items=[policy_item(policy) for policy in policies],
        columns=_POLICY_COLUMNS,
        empty="no policy was published yet",
    )


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


def device_item(device: fleet_pb2.Device) -> dict[str, Value]:
    """One device, as `devices ls` shows it. An age of null: never."""
    status, telemetry = device.status, device.telemetry
    return {
        "device_id": device.device_id,
        "health": _slug(fleet_pb2.Health.Name(device.health), "HEALTH_"),
        "reasons": list(device.reasons),
        "run_id": status.run_id.hex(),
        "env_id": status.env_spec.env_id,
        "envs": status.envs,
        "agent_version": status.agent_version,
        "active_version": telemetry.active_version,
        "active_digest": telemetry.active_digest.hex(),
        "active_precision": telemetry.active_precision,
        "precision_reason": telemetry.precision_reason,
        "int8_us": _measured(telemetry.int8_us),
        "fp32_us": _measured(telemetry.fp32_us),
        "lag_updates": device.lag_updates,
        "swaps": telemetry.swaps,
        "swap_ms_p99": telemetry.swap_ms_p99,
        "policy_rejections": telemetry.policy_rejections,
        "env_steps": telemetry.env_steps,
        "episodes": telemetry.episodes,
        "steps_per_s": telemetry.steps_per_s,
        "control_hz_achieved": telemetry.control_hz_achieved,
        "deadline_misses": telemetry.deadline_misses,
        "rss_bytes": telemetry.rss_bytes,
        "bytes_up": telemetry.bytes_up,
        "bytes_down": telemetry.bytes_down,
        "bytes_down_sent": device.bytes_down_sent,
        "spool_bytes": telemetry.spool_bytes,
        "resent_chunks": telemetry.resent_chunks,
        "learner_ack_age_s": age(telemetry.learner_ack_age_s),
        "uptime_s": telemetry.uptime_s,
        "audit": audit_item(device.audit),
        "chunk_age_s": age(device.chunk_age_s),
        "status_age_s": age(device.status_age_s),
        "telemetry_age_s": age(device.telemetry_age_s),
        "task": device.task,
        "wanted_steps_per_s": telemetry.wanted_steps_per_s or None,
        "oldest_version": telemetry.oldest_version or None,
    }


def device_detail(response: fleet_pb2.DescribeDeviceResponse) -> dict[str, Value]:
    """One device, as `devices describe` shows it: all that `ls` does, and what it said itself."""
    status = response.device.status
    hardware = status.hardware
    return {
        **device_item(response.device),
        "state": _slug(device_pb2.DeviceState.Name(status.state), "DEVICE_STATE_"),
        "state_reason": status.reason,
        "python_version": status.python_version,
        "onnxruntime_version": status.onnxruntime_version,
        "hardware": {
            "machine": hardware.machine,
            "model": hardware.model,
            "cpus": hardware.cpus,
            "memory_bytes": hardware.memory_bytes,
        },
        "gradients": {
            "outcomes": dict(sorted(response.device.gradients.items())),
            "updates_pushed": response.device.telemetry.updates_pushed,
            "updates_applied": response.device.telemetry.updates_applied,
            "chunks_dropped": response.device.telemetry.gradient_chunks_dropped,
        },
        "events": [event_item(event) for event in response.events],
    }


def event_item(recorded: fleet_pb2.RecordedEvent) -> dict[str, Value]:
    """One event of a device."""
    event = recorded.event
    return {
        "severity": _slug(device_pb2.Severity.Name(event.severity), "SEVERITY_"),
        "name": event.name,
        "message": event.message,
        "fields": dict(event.fields),
        "run_id": event.run_id.hex(),
        "event_seq": event.event_seq,
        "age_s": age(recorded.age_s),
    }


def policy_item(policy: fleet_pb2.PolicyInfo) -> dict[str, Value]:
    """One published policy version."""
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
        "reason": policy.reason,
        "created_unix_ms": policy.created_unix_ms,
        "age_s": age(policy.age_s),
    }


def policy_of(policies: Sequence[fleet_pb2.PolicyInfo], version: int) -> fleet_pb2.PolicyInfo:
    """The policy of that version.

    Raises:
        ShoalError: There is none; it names the nearest.
    """
    known = {policy.version: policy for policy in policies}
    if version in known:
        return known[version]
    if not known:
        raise ShoalError("no policy was published yet")
    nearest = min(known, key=lambda one: abs(one - version))
    raise ShoalError(
        f"no policy v{version}: v{min(known)} to v{max(known)} are kept, the nearest is "
        f"v{nearest}; `shoal policy ls` lists them"
    )


def describe_policy(item: Item) -> list[str]:
    """One policy version in lines."""
    created_s = _number(item["created_unix_ms"]) / 1000
    created = datetime.fromtimestamp(created_s, UTC).isoformat(sep=" ", timespec="seconds")
    as_is, as_fp32 = _number(item["tensors_bytes"]), _number(item["fp32_bytes"])
    staleness = item["kl_staleness"]
    running = cast("list[str]", item["active_devices"])
    facts = (
        ("Policy", f"v{item['version']}"),
        ("Reason", _text(item, "reason")),
        ("Created", f"{created} ({_ago(_age(item, 'age_s'))})"),
        ("Updates", f"{item['updates']} of the optimiser"),
        ("Precision", _text(item, "precision")),
        (
            "Size",
            (
                f"weights {size(as_is)} ({size(as_fp32)} as fp32), "
                f"a device downloads {size(_number(item['bundle_bytes']))}"
            ),
        ),
        ("Gap", f"by quantization {_number(item['kl_quantization']):.2e} nats"),
        ("", f"by staleness {NOTHING if staleness is None else f'{_number(staleness):.2e} nats'}"),
        ("Agreement", f"{100 * _number(item['agreement']):.1f} % of decisions are those of fp32"),
        ("Digest", _text(item, "digest")),
        ("Graph", _text(item, "graph_digest")),
        ("Devices", ", ".join(running) or "none runs it"),
    )
    return [f"{title:<15}{text}" for title, text in facts]


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


def event_list(item: Item) -> Listing:
    """The events of one device, for the table below its description."""
    return Listing(
        schema="shoal.v1.EventList",
        items=cast("list[Item]", item["events"]),
        columns=_EVENT_COLUMNS,
        empty="no event",
    )


def describe(item: Item) -> list[str]:
    """The description of one device in lines: what is known, and how old it is."""
    hardware = cast("Mapping[str, Value]", item["hardware"])
    audit = cast("Mapping[str, Value]", item["audit"])
    cpus, memory = hardware["cpus"], size(_number(hardware["memory_bytes"]))
    counts = ", ".join(f"{audit[name]} {name.replace('_', ' ')}" for name in AUDIT_COUNTS)
    reported, said = _age(item, "telemetry_age_s"), _age(item, "status_age_s")
    facts = (
        ("Device", _text(item, "device_id"), None),
        ("Health", _health(item), reported),
        ("State", " ".join(filter(None, (str(item["state"]), str(item["state_reason"])))), said),
        ("Run", _text(item, "run_id"), said),
        ("Environment", f"{item['env_id'] or NOTHING} x {item['envs']}", said),
        ("Software", _software(item), said),
        ("Hardware", f"{hardware['model'] or hardware['machine']}, {cpus} CPUs, {memory}", said),
        ("Policy", f"{_policy(item)} ({_short(item, 'active_digest')})", reported),
        ("Precision", _precision(item), reported),
        ("Lag", f"{item['lag_updates']} updates", reported),
        (
            "Swaps",
            (
                f"{item['swaps']} (p99 {_number(item['swap_ms_p99']):.1f} ms), "
                f"{item['policy_rejections']} policies refused"
            ),
            reported,
        ),
        (
            "Acting",
            (
                f"{item['env_steps']} steps, {item['episodes']} episodes, "
                f"{_number(item['steps_per_s']):.0f} steps/s, "
                f"{item['deadline_misses']} deadlines missed"
            ),
            reported,
        ),
        ("Task", _text(item, "task"), None),
        ("Appetite", _appetite(item), reported),
        ("Memory", size(_number(item["rss_bytes"])), reported),
        (
            "Traffic",
            (
                f"{size(_number(item['bytes_up']))} up, {size(_number(item['bytes_down']))} down, "
                f"{item['resent_chunks']} chunks sent again"
            ),
            reported,
        ),
        ("Spool", size(_number(item["spool_bytes"])), reported),
        ("Learner heard", _ago(_age(item, "learner_ack_age_s")), reported),
        ("Chunks", counts + ("" if audit["balanced"] else "; they do NOT add up"), reported),
        ("Last chunk", _ago(_age(item, "chunk_age_s")), None),
        *([("Gradients", told, reported)] if (told := _gradients(item)) else []),
    )
    return [
        f"{title:<15}{text}" + (f"  [{_ago(when)}]" if when is not None else "")
        for title, text, when in facts
    ]


def _gradients(item: Item) -> str:
    """What became of the gradients of a device, in the words of the learner; "" of none."""
    said = cast("Mapping[str, Value]", item["gradients"])
    outcomes = cast("Mapping[str, int]", said["outcomes"])
    if not outcomes and not said["updates_pushed"]:
        return ""
    counts = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in outcomes.items())
    return f"{counts or 'none came'}; {said['chunks_dropped']} chunks given up on the device"


def age(seconds: float) -> float | None:
    """An age of the server's: negative means never."""
    return None if seconds < 0 else seconds


def _slug(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()


def _text(item: Item, key: str) -> str:
    value = item[key]
    return NOTHING if value is None or value == "" else str(value)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _age(item: Item, key: str) -> str:
    value = item[key]
    return duration(value if isinstance(value, int | float) else None)


def _ago(text: str) -> str:
    return text if text == "never" else f"{text} ago"


def _short(item: Item, key: str) -> str:
    return str(item[key])[:SHORT_DIGEST] or NOTHING


def _policy(item: Item) -> str:
    return f"v{item['active_version']}" if item["active_version"] else "none"


def _measured(microseconds: float) -> float | None:
    return microseconds or None


def _microseconds(item: Item, key: str) -> str:
    return NOTHING if item[key] is None else f"{_number(item[key]):.1f}"


def _precision(item: Item) -> str:
    reason = item["precision_reason"]
    return _text(item, "active_precision") + (f": {reason}" if reason else "")


def _appetite(item: Item) -> str:
    """What the learner wants of a device."""
    rate, oldest = item["wanted_steps_per_s"], item["oldest_version"]
    wants = "all there is" if rate is None else f"{_number(rate):.0f} steps/s"
    return f"the learner wants {wants}" + (f", of v{oldest} or newer" if oldest else "")


def _health(item: Item) -> str:
    reasons = cast("list[str]", item["reasons"])
    return str(item["health"]) + (f": {'; '.join(reasons)}" if reasons else "")


def _software(item: Item) -> str:
    agent, python, runtime = (
        item[key] or "?" for key in ("agent_version", "python_version", "onnxruntime_version")
    )
    return f"shoal {agent}, Python {python}, onnxruntime {runtime}"


def _in_flight(item: Item) -> str:
    return str(cast("Mapping[str, Value]", item["audit"])["in_flight"])


def _plain(title: str, key: str, *, wide: bool = False, right: bool = False) -> Column:
    return Column(title, lambda item: _text(item, key), wide=wide, right=right)


def _count(title: str, key: str, *, wide: bool = False) -> Column:
    return _plain(title, key, wide=wide, right=True)


def _bytes(title: str, key: str) -> Column:
    return Column(title, lambda item: size(_number(item[key])), wide=True, right=True)


def _aged(title: str, key: str, *, wide: bool = False) -> Column:
    return Column(title, lambda item: _age(item, key), wide=wide, right=True)


_DEVICE_COLUMNS = (
    _plain("NAME", "device_id"),
    Column("HEALTH", lambda item: str(item["health"])),
    Column("POLICY", _policy, right=True),
    _count("LAG", "lag_updates"),
    _count("STEPS", "env_steps"),
    Column("STEPS/S", lambda item: f"{_number(item['steps_per_s']):.0f}", right=True),
    _count("EPISODES", "episodes"),
    Column("IN-FLIGHT", _in_flight, right=True),
    Column("RUN", lambda item: str(item["run_id"])[:8] or NOTHING, wide=True),
    Column("DIGEST", lambda item: _short(item, "active_digest"), wide=True),
    _plain("PRECISION", "active_precision", wide=True),
    Column("INT8-US", lambda item: _microseconds(item, "int8_us"), wide=True, right=True),
    Column("FP32-US", lambda item: _microseconds(item, "fp32_us"), wide=True, right=True),
    _plain("ENV", "env_id", wide=True),
    _count("SWAPS", "swaps", wide=True),
    _bytes("RSS", "rss_bytes"),
    _bytes("UP", "bytes_up"),
    _bytes("DOWN", "bytes_down"),
    _bytes("SPOOL", "spool_bytes"),
    _aged("LAST-CHUNK", "chunk_age_s", wide=True),
    _aged("STATUS-AGE", "status_age_s", wide=True),
    Column("WHY", lambda item: "; ".join(cast("list[str]", item["reasons"])) or NOTHING, wide=True),
    _aged("AGE", "telemetry_age_s"),
)

_POLICY_COLUMNS = (
    Column("NAME", lambda item: f"v{item['version']}"),
    Column("DIGEST", lambda item: _short(item, "digest")),
    _count("UPDATES", "updates"),
    _plain("PRECISION", "precision"),
    Column("KL-QUANT", lambda item: f"{_number(item['kl_quantization']):.2e}", right=True),
    _count("DEVICES", "devices_active"),
    _plain("REASON", "reason"),
    Column("GRAPH", lambda item: _short(item, "graph_digest"), wide=True),
    _bytes("SIZE", "bundle_bytes"),
    _bytes("FP32", "fp32_bytes"),
    Column(
        "KL-STALE",
        lambda item: (
            NOTHING if item["kl_staleness"] is None else f"{_number(item['kl_staleness']):.2e}"
        ),
        wide=True,
        right=True,
    ),
    Column("AGREE", lambda item: f"{100 * _number(item['agreement']):.1f}%", wide=True, right=True),
    _aged("AGE", "age_s"),
)

_AUDIT_COLUMNS = (
    _plain("NAME", "device_id"),
    *(_count(name.replace("_", "-").upper(), name) for name in AUDIT_COUNTS),
    Column("BALANCED", lambda item: "yes" if item["balanced"] else "NO"),
    _aged("AGE", "telemetry_age_s"),
)

_EVENT_COLUMNS = (
    _plain("EVENT", "name"),
    _plain("SEVERITY", "severity"),
    _plain("MESSAGE", "message"),
    _aged("AGE", "age_s"),
)
