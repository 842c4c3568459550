"""Bundles for tests: small ones, signed by a key of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.bundle import MANIFEST_NAME, SIGNATURE_NAME, BundleFile, Manifest, sign
from shoal.bundle_archive import pack

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
FINGERPRINT = "ab" * 32
CONTENTS: Mapping[str, bytes] = {
    "boot/launcher.py": b"print('acting')\n",
    "config/agent.toml": b'fleet = "reef"\n',
    "config/policy.pub": PUBLIC.hex().encode() + b"\n",
    "install.sh": b"#!/bin/sh\nexit 0\n",
    "wheels/empty-1.0-py3-none-any.whl": b"",
    "wheels/shoal-0.1.0-py3-none-any.whl": bytes(range(256)) * 5,
}


def manifest_of(contents: Mapping[str, bytes] = CONTENTS, **values: str) -> Manifest:
    """The manifest of some contents."""
    files = [
        BundleFile(path, len(content), hashlib.sha256(content).hexdigest())
        for path, content in sorted(contents.items())
    ]
    given: dict[str, Any] = {
        "fleet": "reef",
        "version": "0.1.0-1",
        "shoal_version": "0.1.0",
        "arch": "aarch64",
        "python": "3.11",
        "created": "2026-01-31T12:00:00Z",
        "min_glibc": "2.28",
        "ca_fingerprint": FINGERPRINT,
        "enrollment": "fleet.example.org:8444",
    }
    return Manifest(**(given | values), files=tuple(files))


def write_bundle(
    path: Path,
    contents: Mapping[str, bytes] = CONTENTS,
    *,
    key: Ed25519PrivateKey = KEY,
    **values: str,
) -> Manifest:
    """Writes a bundle as a tar."""
    manifest = manifest_of(contents, **values)
    with path.open("wb") as out:
        pack(out, manifest, sign(manifest, key), contents)
    return manifest


def write_directory(
    directory: Path,
    contents: Mapping[str, bytes] = CONTENTS,
    *,
    key: Ed25519PrivateKey = KEY,
    **values: str,
) -> Manifest:
    """Writes a bundle as a directory, as unpacking leaves it."""
    manifest = manifest_of(contents, **values)
    everything = {
        **contents,
        MANIFEST_NAME: manifest.encode(),
        SIGNATURE_NAME: sign(manifest, key),
    }
    for path, content in everything.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return manifest
