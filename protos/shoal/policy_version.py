"""The policy version that a person names."""

from __future__ import annotations

import re
from typing import Final

from shoal.errors import ConfigError

LATEST: Final = "latest"
_DIGITS: Final = re.compile(r"v?(0*[1-9][0-9]{0,17})", re.ASCII)


def parse_policy_version(text: str) -> int | None:
    """Reads the name of a policy version.

    Args:
        text: Its number, with or without a v, or `latest`.

    Returns:
        The number; None for the newest there is.

    Raises:
        ConfigError: It is none of these.
    """
    if text == LATEST:
        return None
    found = _DIGITS.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is no policy version: give its number, such as 7 or v7, or {LATEST}"
        )
    return int(found[1])
