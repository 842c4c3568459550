"""Which policy a device takes, of what it took before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wire.samples import samples

from edge_agent.policies.acceptance import check_acceptable
from edge_agent.policies.policy_files import PolicyFile
from shoal.errors import PolicyRejected
from shoal.policy import decode_manifest

MANIFEST = replace(decode_manifest(samples()["PolicyManifest"]), version=7)
THIS = PolicyFile(7, bytes(32))


def reason(
    *,
    newest: PolicyFile | None = None,
    on_disk: PolicyFile | None = None,
    condemned: frozenset[bytes] = frozenset(),
) -> str:
    try:
        check_acceptable(
            MANIFEST,
            THIS,
            fleet=MANIFEST.fleet,
            fingerprint=MANIFEST.spec_fingerprint,
            newest=newest,
            on_disk=on_disk,
            condemned=condemned,
        )
    except PolicyRejected as rejected:
        return rejected.reason
    return ""


@pytest.mark.parametrize(
    ("newest", "wanted"),
    [
        (None, ""),
        (PolicyFile(6, bytes([1]) * 32), ""),
        (THIS, ""),  # the very same again: its file may be damaged
        (PolicyFile(7, bytes([1]) * 32), "rollback"),
        (PolicyFile(8, bytes([1]) * 32), "rollback"),
    ],
)
def test_only_what_is_newer_or_the_very_newest_again_is_taken(
    newest: PolicyFile | None, wanted: str
) -> None:
    assert reason(newest=newest) == wanted


def test_what_failed_here_is_not_taken_again() -> None:
    assert reason(condemned=frozenset({THIS.manifest_digest})) == "condemned"


def test_a_file_is_taken_for_what_its_name_says() -> None:
    assert not reason(newest=PolicyFile(9, bytes(32)), on_disk=THIS)
    assert reason(on_disk=PolicyFile(9, bytes(32))) == "malformed"
