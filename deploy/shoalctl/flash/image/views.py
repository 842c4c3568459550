"""What `shoal flash` writes to stdout."""

from __future__ import annotations

from collections.abc import Sequence

from shoalctl.flash.image.command import FlashReport
from shoalctl.flash.image.disks import Disk
from shoalctl.flash.image.verdict import refusals, sentence
from shoalctl.output import NOTHING, Column, Item, Listing, duration, size


def disk_list(disks: Sequence[Disk], *, allow_internal: bool = False) -> Listing:
    """The disks of this machine, and why each is refused."""
    items = [_disk(disk, allow_internal=allow_internal) for disk in disks]
    return Listing("shoal.v1.DiskList", items, _DISK_COLUMNS, "no disks")


def flash_report(report: FlashReport) -> Listing:
    """What a flash did. Nothing secret is in it."""
    staged, flashed = report.staged, report.flashed
    item: Item = {
        "target": str(report.target.path),
        "image": str(staged.source.path),
        "file_sha256": report.file_sha256,
        "sha256_compared": report.sha256_compared,
        "image_sha256": flashed.image_sha256 if flashed else None,
        "image_bytes": flashed.image_bytes if flashed else staged.source.size_bytes,
        "required_bytes": staged.required_bytes,
        "seeded_as": staged.support.format if staged.support else None,
        "seed_reason": staged.support.reason if staged.support else None,
        "instance_id": report.instance_id,
        "seed_files": [seed.name for seed in staged.seeds],
        "verified": flashed is not None,
        "resumed_bytes": flashed.skipped_bytes if flashed else 0,
        "duration_s": flashed.duration_s if flashed else None,
        "dry_run": flashed is None,
    }
    return Listing("shoal.v1.FlashReport", [item], _REPORT_COLUMNS, "nothing")


def _disk(disk: Disk, *, allow_internal: bool) -> Item:
    found = refusals(disk, allow_internal=allow_internal)
    return {
        "name": str(disk.path),
        "model": disk.model,
        "size_bytes": disk.size_bytes,
        "bus": disk.bus,
        "serial": disk.serial,
        "writable": not found,
        "refusals": [
            {"reason": refusal.reason.value, "detail": refusal.detail} for refusal in found
        ],
        "verdict": sentence(found) or "ok",
    }


def _text(key: str) -> Column:
    title = key.replace("_", " ").upper()
    return Column(title, lambda item: str(item[key] or NOTHING))


def _bytes(title: str, key: str) -> Column:
    return Column(title, lambda item: _size(item[key]), right=True)


def _size(value: object) -> str:
    return size(value) if isinstance(value, int) else NOTHING


def _took(item: Item) -> str:
    value = item["duration_s"]
    return duration(value) if isinstance(value, float) else NOTHING


_DISK_COLUMNS = (
    _text("name"),
    _text("model"),
    _bytes("SIZE", "size_bytes"),
    _text("bus"),
    _text("serial"),
    _text("verdict"),
)
_REPORT_COLUMNS = (
    _text("target"),
    _bytes("SIZE", "image_bytes"),
    _text("seeded_as"),
    Column("VERIFIED", lambda item: "yes" if item["verified"] else "dry run"),
    Column("SHA256", lambda item: "compared" if item["sha256_compared"] else "not given"),
    Column("TOOK", _took, right=True),
    Column("INSTANCE", lambda item: str(item["instance_id"] or NOTHING), wide=True),
)
