"""What a person reads at the end of a demo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoalctl.demo.picture import bytes_text

_VERBS = {
    "solved": "solved",
    "steps": "ended, NOT solved,",
    "timeout": "NOT solved",
    "interrupted": "interrupted, NOT solved,",
}


def summary(envelope: Mapping[str, Any]) -> str:
    """The envelope of `shoal demo -o json` in a few lines."""
    audit, moved, lag = envelope["audit"], envelope["bytes"], envelope["lag"]
    quantization, devices = envelope["quantization"], envelope["devices"]
    mean, threshold, published = (
        envelope[name] for name in ("return_mean", "threshold", "published")
    )
    verb = _VERBS["solved" if envelope["solved"] else envelope["ended"]]
    versions = ", ".join(str(device["active_version"]) for device in devices)
    balance = "balanced" if audit["balanced"] else "NOT BALANCED"
    if not any(count for name, count in audit.items() if name != "balanced"):
        pushed = envelope["gradients"].get("updates_pushed")
        balance = "observations stay on devices" if pushed else "nothing known yet"
    acted = f"{len(devices)}, on policy {versions} of {envelope['policy_versions']}"
    return (
        f"{envelope['env']} {verb} in {envelope['wall_s']:.1f} s, "
        f"{envelope['env_steps']:,} environment steps, mean return "
        f"{'unknown' if mean is None else mean} "
        f"(threshold {'none' if threshold is None else format(threshold, 'g')})\n"
        + (f"  published  {published['text']}\n" if published else "")
        + f"  devices    {acted if devices else 'none came up'}\n"
        f"  precision  {quantization['precision'] or 'unknown'}, gap by quantization "
        f"{quantization['kl_quantization']:.2g} nats, by staleness "
        f"{max(0.0, quantization['kl_staleness']):.2g} nats\n"
        f"  lag        p50 {lag['p50']:g}, p99 {lag['p99']:g}, max {lag['max']:g} updates\n"
        f"  bytes      up {bytes_text(moved['up'])}, down {bytes_text(moved['down'])} "
        f"(as fp32: {bytes_text(moved['down_fp32_equivalent'])})\n"
        f"  chunks     produced {audit['produced']} = trained {audit['trained']} + expired "
        f"{audit['expired']} + dropped {audit['dropped']} + rejected {audit['rejected']} + "
        f"in flight {audit['in_flight']}: {balance}" + _gradients(envelope["gradients"])
    )


def advice(envelope: Mapping[str, Any]) -> str:
    """What to try after a demo that ran out of time."""
    audit = envelope["audit"]
    if not envelope["devices"]:
        return "no device came up: give more time with --timeout-s; --dir keeps the logs"
    if audit["rejected"] and not audit["trained"]:
        return (
            f"the learner rejected all {audit['rejected']} chunks: `shoal agent check "
            f"{envelope['env']}` says what it cannot use; --dir keeps the learner's log"
        )
    return "give more time with --timeout-s, or a lower goal with --until-return"


def _gradients(counts: Mapping[str, int]) -> str:
    """What became of gradients, in a line; nothing where none were pushed."""
    if not counts.get("updates_pushed"):
        return ""
    refused = ", ".join(
        f"{count} refused for {name.removeprefix('updates_refused_').replace('_', ' ')}"
        for name, count in sorted(counts.items())
        if name.startswith("updates_refused_")
    )
    applied, pushed = counts.get("updates_applied", 0), counts["updates_pushed"]
    return f"\n  gradients  {applied:,} applied of {pushed:,} pushed" + (
        f": {refused}" if refused else ""
    )
