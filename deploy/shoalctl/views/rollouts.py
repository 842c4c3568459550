"""What an operator sees of rollouts: the server's messages as items, and items as columns. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from shoal.v1 import rollout_pb2 as pb
from shoalctl.output import NOTHING, Column, Item, Listing, Value, duration
from shoalctl.views.cells import aged, count, plain, slug

_STATE, _PROGRESS, _KIND = "ROLLOUT_STATE_", "ROLLOUT_PROGRESS_", "ROLLOUT_KIND_"


def rollout_list(rollouts: Iterable[pb.Rollout]) -> Listing:
    """`shoal rollout ls`."""
    return Listing(
        schema="shoal.v1.RolloutList",
        items=[rollout_item(each) for each in rollouts],
        columns=_COLUMNS,
        empty="no rollouts: devices follow the newest policy; start one by `shoal rollout start`",
    )


def member_list(item: Item) -> Listing:
    """The devices of one rollout."""
    members = item["members"]
    return Listing(
        schema="shoal.v1.RolloutMemberList",
        items=list(members) if isinstance(members, list) else [],
        columns=_MEMBER_COLUMNS,
        empty="no device has joined yet",
    )


def rollout_item(rollout: pb.Rollout, *, now_s: float | None = None) -> dict[str, Value]:
    """One rollout."""
    plan = rollout.plan
    now_s = time.time() if now_s is None else now_s
    members = [_member(each) for each in rollout.members]
    created_s = rollout.created_unix_ms / 1000
    return {
        "id": rollout.rollout_id,
        "kind": slug(pb.RolloutKind.Name(plan.kind), _KIND),
        "version": plan.version,
        "state": slug(pb.RolloutState.Name(rollout.state), _STATE),
        "reason": rollout.reason,
        "wave": rollout.wave,
        "waves": [_wave(each) for each in plan.waves],
        "devices": rollout.devices,
        "asked": rollout.asked,
        "succeeded": rollout.succeeded,
        "failed": rollout.failed,
        "timed_out": rollout.timed_out,
        "episodes": plan.episodes,
        "wave_timeout_s": plan.wave_timeout_s,
        "max_failures": plan.max_failures,
        "min_failures": plan.min_failures,
        "patterns": plan.devices,
        "why": plan.reason,
        "candidate_version": rollout.candidate_version or None,
        "baseline_version": rollout.baseline_version or None,
        "undo_version": rollout.undo_version or None,
        "ran_s": rollout.ran_s,
        "age_s": max(0.0, now_s - created_s) if created_s else None,
        "members": members,
        "history": [
            {"at_s": each.at_s, "name": each.name, "reason": each.reason}
            for each in rollout.history
        ],
    }


def describe_rollout(item: Item) -> Iterator[str]:
    """`shoal rollout status`, above the table of devices."""
    waves = item["waves"]
    shown = ", ".join(map(str, waves)) if isinstance(waves, list) else ""
    yield f"rollout {item['id']} of {item['kind']} {item['version']}"
    yield f"  state     {item['state']}" + (f": {item['reason']}" if item["reason"] else "")
    yield f"  wave      {item['wave']} of {shown}"
    yield (
        f"  devices   {item['devices']}: {item['asked']} asked, {item['succeeded']} acted on it, "
        f"{item['failed']} failed, {item['timed_out']} timed out" + _gone_back(item)
    )
    ran, timeout = item["ran_s"], item["wave_timeout_s"]
    yield (
        f"  rule      {item['episodes']} episodes within "
        f"{duration(timeout if isinstance(timeout, float) else None)}; up to "
        f"{100 * _number(item['max_failures']):g}% may fail"
    )
    if item["candidate_version"]:
        told = f"v{item['candidate_version']} in its waves, v{item['baseline_version']} elsewhere"
        if item["undo_version"]:
            told += f", given back as v{item['undo_version']}"
        yield f"  versions  {told}"
    yield f"  ran       {duration(_number(ran))}"
    history = item["history"]
    for note in history if isinstance(history, list) else ():
        why = f": {note['reason']}" if note["reason"] else ""
        yield f"  at {duration(_number(note['at_s'])):>7} {note['name']}{why}"


def line_of(item: Item) -> str:
    """A rollout in one line, for `--watch`."""
    return (
        f"{item['kind']} {item['version']}: {item['state']}, wave {item['wave']}, "
        f"{item['asked']} of {item['devices']} asked, {item['succeeded']} acted on it, "
        f"{item['failed']} failed, {item['timed_out']} timed out"
        + (f": {item['reason']}" if item["reason"] else "")
    )


def bundle_list(bundles: Iterable[pb.AgentBundle]) -> Listing:
    """`shoal rollout bundles ls`."""
    return Listing(
        schema="shoal.v1.AgentBundleList",
        items=[bundle_item(each) for each in bundles],
        columns=_BUNDLE_COLUMNS,
        empty="no bundles: add one by `shoal rollout bundles add FILE`",
    )


def bundle_item(bundle: pb.AgentBundle) -> dict[str, Value]:
    """One bundle."""
    return {
        "version": bundle.version,
        "arch": bundle.arch,
        "python": bundle.python,
        "digest": bundle.digest.hex(),
        "bundle_bytes": bundle.bundle_bytes,
        "bundle_digest": bundle.bundle_digest.hex(),
    }


def _member(member: pb.RolloutMember) -> dict[str, Value]:
    return {
        "device_id": member.device_id,
        "wave": member.wave,
        "progress": slug(pb.RolloutProgress.Name(member.progress), _PROGRESS),
        "reason": member.reason,
        "episodes": member.episodes,
        "age_s": member.age_s,
    }


def _wave(wave: pb.RolloutWave) -> str:
    return str(wave.devices) if wave.devices else f"{100 * wave.share:g}%"


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _gone_back(item: Item) -> str:
    members = item["members"]
    left = (
        [each for each in members if each["progress"] == "left"]
        if isinstance(members, list)
        else []
    )
    return f", {len(left)} went back" if left else ""


def _waves(item: Item) -> str:
    waves = item["waves"]
    return f"{item['wave']}/{len(waves)}" if isinstance(waves, list) else NOTHING


_COLUMNS = (
    count("ID", "id"),
    plain("KIND", "kind"),
    plain("VERSION", "version"),
    plain("STATE", "state"),
    Column("WAVE", _waves, right=True),
    count("DEVICES", "devices"),
    count("ASKED", "asked"),
    count("ACTED", "succeeded"),
    count("FAILED", "failed"),
    count("LATE", "timed_out"),
    count("CANDIDATE", "candidate_version", wide=True),
    count("BASELINE", "baseline_version", wide=True),
    plain("FOR", "patterns", wide=True),
    plain("REASON", "reason", wide=True),
    aged("AGE", "age_s"),
)
_MEMBER_COLUMNS = (
    plain("NAME", "device_id"),
    count("WAVE", "wave"),
    plain("PROGRESS", "progress"),
    count("EPISODES", "episodes"),
    plain("REASON", "reason"),
    aged("AGE", "age_s"),
)
_BUNDLE_COLUMNS = (
    plain("VERSION", "version"),
    plain("ARCH", "arch"),
    plain("PYTHON", "python"),
    Column("DIGEST", lambda item: str(item["digest"])[:12]),
    count("BYTES", "bundle_bytes"),
)
