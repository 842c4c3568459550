"""Whether the person, or the script, means the target that is about to be overwritten."""

from __future__ import annotations

import re

from shoal.errors import ConfigError
from shoalctl.flash.image.target import Target
from shoalctl.output import size

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"(\d+)(?:\.(\d+))?\s*([a-z]*)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """A number of bytes, written like `4000000000`, `4GB` or `3.7GiB`.

    Raises:
        ConfigError: It is written otherwise.
    """
    count, fraction, unit = _parts(text)
    return round(float(f"{count}.{fraction or 0}") * unit)


def size_matches(text: str, size_bytes: int) -> bool:
    """Whether a size is the one that was written down, to as many digits as were written.

    `31.9GB` and `32GB` both match a card of 31,914,983,424 bytes; without a unit all bytes count.

    Raises:
        ConfigError: It is no size.
    """
    count, fraction, unit = _parts(text)
    if unit == 1:
        return size_bytes == int(count)
    digits = len(fraction)
    return f"{size_bytes / unit:.{digits}f}" == (f"{count}.{fraction}" if fraction else count)


def check_expectations(
    target: Target, *, expect_serial: str | None, expect_size: str | None
) -> None:
    """Checks that a target is the one a script was written for.

    Raises:
        ConfigError: It is another, or it has no such thing.
    """
    if expect_serial is not None:
        serial = target.disk.serial if target.disk else ""
        if not serial:
            raise ConfigError(f"{target.path} has no serial number: use --expect-size")
        if serial != expect_serial:
            raise ConfigError(
                f"{target.path} has the serial number {serial}, and {expect_serial} was expected: "
                "nothing was written"
            )
    if expect_size is not None:
        size_bytes = target.path.stat().st_size if target.disk is None else target.disk.size_bytes
        if not size_matches(expect_size, size_bytes):
            raise ConfigError(
                f"{target.path} has {size(size_bytes)} ({size_bytes} bytes), and {expect_size} was "
                "expected: nothing was written"
            )


def check_consent(target: Target, *, yes: bool, expected: bool, interactive: bool) -> bool:
    """Whether a person has still to be asked.

    Args:
        target: What is to be overwritten.
        yes: Whether `--yes` was given.
        expected: Whether `--expect-serial` or `--expect-size` was given, and met.
        interactive: Whether a person can be asked.

    Raises:
        ConfigError: Nobody can be asked, and the command line doesn't say enough.
    """
    if not target.exists:
        return False
    if yes and expected:
        return False
    if yes:
        raise ConfigError(
            "--yes needs --expect-serial or --expect-size (both as `shoal flash list` shows them), "
            f"so that the wrong disk is never overwritten; this is {target.description}"
        )
    if not interactive:
        raise ConfigError(
            f"{target.description} would be overwritten, and there is no terminal to ask at: "
            "give --yes with --expect-serial or --expect-size"
        )
    return True


def _parts(text: str) -> tuple[str, str, int]:
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get((match[3] or "B").upper()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"size {text!r}: write it like 31914983424, 32GB, 31.9GB or 29.7GiB")
    return match[1], match[2] or "", unit
