"""The devices of a fleet, for people and programs: every value comes with an age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from shoal.v1 import device_pb2, fleet_pb2, slot_pb2
from shoalctl.output import NOTHING, Column, Item, Listing, Value, size
from shoalctl.views.audit import AUDIT_COUNTS, audit_item
from shoalctl.views.cells import (
    age,
    age_text,
    aged,
    ago,
    bytes_cell,
    count,
    measured,
    number,
    plain,
    short,
    slug,
    text,
)


def device_list(devices: Iterable[fleet_pb2.Device]) -> Listing:
    """`shoal devices ls`."""
    return Listing(
        schema="shoal.v1.DeviceList",
        items=[device_item(device) for device in devices],
        columns=_DEVICE_COLUMNS,
        empty="no device was heard of yet; start one with `shoal agent run`, or see "
        "`shoal devices events` for those that were refused",
    )


def slot_item(slot: slot_pb2.SlotReport) -> dict[str, Value]:
    """Which installation of a device runs; all empty where it does not run from slots."""
    trial = slug(slot_pb2.TrialState.Name(slot.trial), "TRIAL_STATE_") if slot.slot else ""
    return {
        "slot": slot.slot,
        "bundle_version": slot.bundle_version,
        "bundle_digest": slot.digest.hex(),
        "slot_trial": trial,
        "slot_held": slot.held,
        "slot_last": slot.last,
    }


def device_item(device: fleet_pb2.Device) -> dict[str, Value]:
    """One device, as `devices ls` shows it. An age of null: never."""
    status, telemetry = device.status, device.telemetry
    # A learner of before leaves these two to telemetry.
    active = device if device.active_version else telemetry
    return {
        "device_id": device.device_id,
        "health": slug(fleet_pb2.Health.Name(device.health), "HEALTH_"),
        "reasons": list(device.reasons),
        "run_id": status.run_id.hex(),
        "env_id": status.env_spec.env_id,
        "envs": status.envs,
        "agent_version": status.agent_version,
        "active_version": active.active_version,
        "active_digest": active.active_digest.hex(),
        "active_precision": telemetry.active_precision,
        "precision_reason": telemetry.precision_reason,
        "int8_us": measured(telemetry.int8_us),
        "fp32_us": measured(telemetry.fp32_us),
        "int8_dynamic_us": measured(telemetry.int8_dynamic_us),
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
        **slot_item(telemetry.slot),
        "wanted_steps_per_s": telemetry.wanted_steps_per_s or None,
        "oldest_version": telemetry.oldest_version or None,
    }


def device_detail(response: fleet_pb2.DescribeDeviceResponse) -> dict[str, Value]:
    """One device, as `devices describe` shows it: all that `ls` does, and what it said itself."""
    status = response.device.status
    hardware = status.hardware
    return {
        **device_item(response.device),
        "state": slug(device_pb2.DeviceState.Name(status.state), "DEVICE_STATE_"),
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
        "severity": slug(device_pb2.Severity.Name(event.severity), "SEVERITY_"),
        "name": event.name,
        "message": event.message,
        "fields": dict(event.fields),
        "run_id": event.run_id.hex(),
        "event_seq": event.event_seq,
        "age_s": age(recorded.age_s),
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
    cpus, memory = hardware["cpus"], size(number(hardware["memory_bytes"]))
    counts = ", ".join(f"{audit[name]} {name.replace('_', ' ')}" for name in AUDIT_COUNTS)
    reported, said = age_text(item, "telemetry_age_s"), age_text(item, "status_age_s")
    facts = (
        ("Device", text(item, "device_id"), None),
        ("Health", _health(item), reported),
        ("State", " ".join(filter(None, (str(item["state"]), str(item["state_reason"])))), said),
        ("Run", text(item, "run_id"), said),
        ("Environment", f"{item['env_id'] or NOTHING} x {item['envs']}", said),
        ("Software", _software(item), said),
        ("Hardware", f"{hardware['model'] or hardware['machine']}, {cpus} CPUs, {memory}", said),
        ("Policy", f"{_policy(item)} ({short(item, 'active_digest')})", reported),
        ("Slot", _slot(item), reported),
        ("Precision", _precision(item), reported),
        ("Lag", f"{item['lag_updates']} updates", reported),
        (
            "Swaps",
            (
                f"{item['swaps']} (p99 {number(item['swap_ms_p99']):.1f} ms), "
                f"{item['policy_rejections']} policies refused"
            ),
            reported,
        ),
        (
            "Acting",
            (
                f"{item['env_steps']} steps, {item['episodes']} episodes, "
                f"{number(item['steps_per_s']):.0f} steps/s, "
                f"{item['deadline_misses']} deadlines missed"
            ),
            reported,
        ),
        ("Task", text(item, "task"), None),
        ("Appetite", _appetite(item), reported),
        ("Memory", size(number(item["rss_bytes"])), reported),
        (
            "Traffic",
            (
                f"{size(number(item['bytes_up']))} up, {size(number(item['bytes_down']))} down, "
                f"{item['resent_chunks']} chunks sent again"
            ),
            reported,
        ),
        ("Spool", size(number(item["spool_bytes"])), reported),
        ("Learner heard", ago(age_text(item, "learner_ack_age_s")), reported),
        ("Chunks", counts + ("" if audit["balanced"] else "; they do NOT add up"), reported),
        ("Last chunk", ago(age_text(item, "chunk_age_s")), None),
        *([("Gradients", told, reported)] if (told := _gradients(item)) else []),
    )
    return [
        f"{title:<15}{fact}" + (f"  [{ago(when)}]" if when is not None else "")
        for title, fact, when in facts
    ]


def _gradients(item: Item) -> str:
    """What became of the gradients of a device, in the words of the learner; "" of none."""
    said = cast("Mapping[str, Value]", item["gradients"])
    outcomes = cast("Mapping[str, int]", said["outcomes"])
    if not outcomes and not said["updates_pushed"]:
        return ""
    counts = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in outcomes.items())
    return f"{counts or 'none came'}; {said['chunks_dropped']} chunks given up on the device"


def _policy(item: Item) -> str:
    if item["active_version"]:
        return f"v{item['active_version']}"
    return "none" if item["telemetry_age_s"] is not None else NOTHING


def _microseconds(item: Item, key: str) -> str:
    return NOTHING if item[key] is None else f"{number(item[key]):.1f}"


def _slot(item: Item) -> str:
    if not item["slot"]:
        return NOTHING
    held = f", held: {item['slot_held']}" if item["slot_held"] else ""
    stands = str(item["slot_trial"]).replace("_", " ")
    return f"{item['slot']}, bundle {item['bundle_version']}, {stands}{held}; {item['slot_last']}"


def _precision(item: Item) -> str:
    reason = item["precision_reason"]
    return text(item, "active_precision") + (f": {reason}" if reason else "")


def _appetite(item: Item) -> str:
    """What the learner wants of a device."""
    rate, oldest = item["wanted_steps_per_s"], item["oldest_version"]
    wants = "all there is" if rate is None else f"{number(rate):.0f} steps/s"
    return f"the learner wants {wants}" + (f", of v{oldest} or newer" if oldest else "")


def unwell_lines(devices: Iterable[fleet_pb2.Device]) -> list[str]:
    """Why devices are not simply online, a line each; of many devices the first."""
    told = [device for device in devices if device.reasons]
    lines = [
        f"{device.device_id}: {device.reasons[0][:_WHY]}"
        + ("" if len(device.reasons) == 1 else f" (and {len(device.reasons) - 1} more)")
        for device in told[:_UNWELL]
    ]
    if len(told) > _UNWELL:
        lines.append(f"{len(told) - _UNWELL} more devices say why in `shoal devices ls -o wide`")
    return lines


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


_UNWELL, _WHY = 5, 160
"""Devices that say why below a table, and how long each may be about it."""
_DEVICE_COLUMNS = (
    plain("NAME", "device_id"),
    Column("HEALTH", lambda item: str(item["health"])),
    Column("POLICY", _policy, right=True),
    count("LAG", "lag_updates"),
    count("STEPS", "env_steps"),
    Column("STEPS/S", lambda item: f"{number(item['steps_per_s']):.0f}", right=True),
    count("EPISODES", "episodes"),
    Column("IN-FLIGHT", _in_flight, right=True),
    Column("RUN", lambda item: str(item["run_id"])[:8] or NOTHING, wide=True),
    Column("DIGEST", lambda item: short(item, "active_digest"), wide=True),
    plain("PRECISION", "active_precision", wide=True),
    Column("INT8-US", lambda item: _microseconds(item, "int8_us"), wide=True, right=True),
    Column("FP32-US", lambda item: _microseconds(item, "fp32_us"), wide=True, right=True),
    Column("DYN-US", lambda item: _microseconds(item, "int8_dynamic_us"), wide=True, right=True),
    plain("SLOT", "slot", wide=True),
    plain("BUNDLE", "bundle_version", wide=True),
    plain("ENV", "env_id", wide=True),
    count("SWAPS", "swaps", wide=True),
    bytes_cell("RSS", "rss_bytes"),
    bytes_cell("UP", "bytes_up"),
    bytes_cell("DOWN", "bytes_down"),
    bytes_cell("SPOOL", "spool_bytes"),
    aged("LAST-CHUNK", "chunk_age_s", wide=True),
    aged("STATUS-AGE", "status_age_s", wide=True),
    Column("WHY", lambda item: "; ".join(cast("list[str]", item["reasons"])) or NOTHING, wide=True),
    aged("AGE", "telemetry_age_s"),
)


_EVENT_COLUMNS = (
    plain("EVENT", "name"),
    plain("SEVERITY", "severity"),
    plain("MESSAGE", "message"),
    aged("AGE", "age_s"),
)
