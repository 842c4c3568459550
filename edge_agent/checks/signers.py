"""Whose policies a device takes, for people."""

from __future__ import annotations

from pathlib import Path

from edge_agent.policies.policy_files import trust_directory
from shoal.generation_mark import GenerationMark

_SHOWN = 12  # hexadecimal digits


def signers(policies: Path, *, fleet: str, public_key: bytes) -> str:
    """One phrase: the policy key, and which of its delegates.

    Args:
        policies: The store's directory; it need not be there.
        fleet: The device's.
        public_key: Of its identity, 32 bytes.
    """
    said = f"takes policies of key {public_key.hex()[:_SHOWN]} and of its delegates"
    try:
        generation = GenerationMark(trust_directory(policies, fleet, public_key)).generation
    except OSError:
        generation = 0
    return f"{said} from generation {generation} on" if generation else said
