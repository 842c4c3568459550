"""Names that options had before: they work on, and no help shows them."""

from __future__ import annotations

from typing import Final

_EARLIER: Final = {"dir": "fleet", "d": "f"}
"""Of a fleet's directory."""


def present_name(name: str) -> str:
    """The name of an option today; for Click's `token_normalize_func`.

    Args:
        name: Without its dashes, as it was typed or declared.
    """
    return _EARLIER.get(name, name)
