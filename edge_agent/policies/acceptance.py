"""Whether a device takes a policy, of what it took before: rules, apart from hashes and files."""

from __future__ import annotations

from collections.abc import Collection

from edge_agent.policies.policy_files import PolicyFile
from shoal.errors import PolicyRejected
from shoal.policy import Manifest, check_manifest


def check_acceptable(
    manifest: Manifest,
    file: PolicyFile,
    *,
    fleet: str,
    fingerprint: bytes,
    newest: PolicyFile | None,
    on_disk: PolicyFile | None,
    condemned: Collection[bytes],
) -> None:
    """Checks what a manifest says, its signature already verified.

    Args:
        manifest: What was offered.
        file: What names it.
        fleet: The device's fleet.
        fingerprint: Of the device's own spaces.
        newest: The newest that was ever accepted here, be it condemned; None: none was.
        on_disk: The file it was read from; None: it came from elsewhere.
        condemned: The sha256 of each manifest whose policy failed here after it was accepted.

    Raises:
        PolicyRejected: With the reason `condemned`, `malformed`, `fleet`, `fingerprint` or
            `rollback`.
    """
    if file.manifest_digest in condemned:
        raise PolicyRejected(
            "condemned",
            f"policy {manifest.version} failed on this device before; publish another version",
        )
    if on_disk is not None and on_disk != file:
        raise PolicyRejected("malformed", f"{on_disk.name} holds policy {manifest.version}")
    # The very policy that was newest may come again: its file may be damaged by now.
    again = on_disk is not None or newest == file
    seen = 0 if newest is None else newest.version
    check_manifest(
        manifest,
        fleet=fleet,
        fingerprint=fingerprint,
        newest_seen=manifest.version - 1 if again else seen,
    )
