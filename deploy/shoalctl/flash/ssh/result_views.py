"""What `shoal flash ssh` and `shoal flash rollback` write to stdout."""

from __future__ import annotations

from collections.abc import Iterator

from shoalctl.flash.ssh.command import Report
from shoalctl.flash.ssh.result import HostResult
from shoalctl.output import NOTHING, Column, Item, Listing, duration


def host_results(report: Report) -> Listing:
    """How it went on each host. Nothing secret is in it."""
    items = [_item(result) for result in report.results]
    extra = {"interrupted": report.interrupted}
    return Listing("shoal.v1.FlashSshReport", items, _COLUMNS, "no hosts", extra=extra)


def planned_lines(report: Report) -> Iterator[str]:
    """What a dry run says: every step, and the command that the host would run."""
    for result in report.results:
        if result.planned:
            yield f"{result.host}: {len(result.planned)} steps, none of them taken"
        for number, planned in enumerate(result.planned, 1):
            yield f"  {number}. {planned.step}: {planned.says}"
            for line in planned.command.splitlines():
                yield f"       {line}"


def _item(result: HostResult) -> Item:
    return {
        "name": result.host,
        "login": result.login,
        "outcome": result.outcome.value,
        "ok": result.ok,
        "step": result.step.value,
        "reason": result.reason,
        "refusals": list(result.refusals),
        "bundle_version": result.bundle_version,
        "bundle_digest": result.digest,
        "slot": result.slot,
        "sent_bytes": result.sent_bytes,
        "resumed_bytes": result.kept_bytes,
        "reconnects": result.reconnects,
        "duration_s": result.duration_s,
        "planned": [
            {"step": planned.step.value, "says": planned.says, "command": planned.command}
            for planned in result.planned
        ],
    }


def _text(key: str) -> Column:
    return Column(key.replace("_", " ").upper(), lambda item: str(item[key] or NOTHING))


def _took(item: Item) -> str:
    value = item["duration_s"]
    return duration(value) if isinstance(value, float) else NOTHING


_COLUMNS = (
    _text("name"),
    _text("outcome"),
    _text("bundle_version"),
    _text("slot"),
    Column("TOOK", _took, right=True),
    _text("reason"),
    Column("LOGIN", lambda item: str(item["login"]), wide=True),
    Column("DIGEST", lambda item: str(item["bundle_digest"] or NOTHING), wide=True),
)
