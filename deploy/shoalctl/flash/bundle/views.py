"""How `shoal flash bundle` shows what it made."""

from __future__ import annotations

from shoalctl.flash.bundle.command import BundleReport
from shoalctl.output import Column, Item, Listing, size


def bundle_report(report: BundleReport) -> Listing:
    """The bundle, one row."""
    manifest = report.manifest
    item: Item = {
        "file": str(report.out),
        "written": report.written,
        "fleet": manifest.fleet,
        "version": manifest.version,
        "shoal_version": manifest.shoal_version,
        "arch": manifest.arch,
        "python": manifest.python,
        "min_glibc": manifest.min_glibc,
        "created": manifest.created,
        "digest": manifest.digest,
        "ca_fingerprint": manifest.ca_fingerprint,
        "enrollment": manifest.enrollment,
        "files": len(manifest.files),
        "bytes": manifest.total_bytes,
        "installed_bytes": report.installed_bytes,
        "packages": list(report.packages),
    }
    columns = (
        Column("FILE", lambda item: str(item["file"])),
        Column("VERSION", lambda item: str(item["version"])),
        Column("ARCH", lambda item: str(item["arch"])),
        Column("PYTHON", lambda item: str(item["python"])),
        Column("GLIBC", lambda item: str(item["min_glibc"])),
        Column("SIZE", lambda item: size(float(str(item["bytes"]))), right=True),
        Column("INSTALLED", lambda item: size(float(str(item["installed_bytes"]))), right=True),
        Column("DIGEST", lambda item: str(item["digest"])[:12]),
        Column("ENROLMENT", lambda item: str(item["enrollment"]), wide=True),
        Column("FILES", lambda item: str(item["files"]), wide=True, right=True),
    )
    return Listing("shoal.v1.BundleReport", [item], columns, "nothing was made")
