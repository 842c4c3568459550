"""What names one process start of a device: at random, or, for runs to be repeated, from a seed."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Final

from shoal.durable_file import write_durably
from shoal.errors import ConfigError
from shoal.noise import RUN_ID_BYTES

STARTS_FILE: Final = "starts"


def new_run_id(device_id: str, state_dir: Path, seed: int | None) -> bytes:
    """Draws the `run_id` of this start.

    With a seed it is a hash of the seed, the device and how often the device started before with
    this state directory: a repeated experiment with a fresh directory acts with the same noise, and
    no two runs of one device ever share a name.

    Args:
        device_id: Whose.
        state_dir: Where starts are counted; made if need be. Left alone without a seed.
        seed: `actor.seed`.

    Returns:
        16 bytes.

    Raises:
        ConfigError: The starts cannot be counted.
    """
    if seed is None:
        return secrets.token_bytes(RUN_ID_BYTES)
    starts = _count_start(state_dir / STARTS_FILE)
    return hashlib.sha256(f"shoal run {seed} {device_id} {starts}".encode()).digest()[:RUN_ID_BYTES]


def _count_start(path: Path) -> int:
    """How many starts there were before this one, which is on disk when it returns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = int(path.read_text("ascii")) if path.exists() else 0
        write_durably(path, str(before + 1).encode())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: starts of seeded runs cannot be counted ({error}); use a fresh state_dir, or "
            "leave out actor.seed"
        ) from error
    return before
