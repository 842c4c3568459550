"""The key that signs policies: it lies in the learner's identity and nowhere else."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.errors import IdentityError
from shoal.identity import Identity

KEY_FILE: Final = "policy.key"


def load_signing_key(identity: Identity) -> Ed25519PrivateKey:
    """Reads the Ed25519 key: 32 bytes as hexadecimal.

    Raises:
        IdentityError: It is missing, malformed, readable by others, or not the one whose public
            half the devices hold.
    """
    path: Path = identity.directory / KEY_FILE
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text("ascii").strip()))
    except OSError as error:
        raise IdentityError(
            f"{path}: {error.strerror}; only a learner's identity can sign policies: "
            "issue one with the role learner"
        ) from error
    except ValueError as error:
        raise IdentityError(f"{path}: must be 32 bytes as hexadecimal ({error})") from error
    if mode & 0o077:
        raise IdentityError(f"{path}: others can read it (mode {mode:04o}); chmod 600 it")
    public = key.public_key().public_bytes_raw()
    if identity.policy_public_key is not None and identity.policy_public_key != public:
        raise IdentityError(
            f"{path} and policy.pub do not belong together: no device would accept its policies"
        )
    return key
