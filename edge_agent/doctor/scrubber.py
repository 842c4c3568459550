"""Takes secrets out of text: those that are known, and whatever looks like one. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

REMOVED: Final = "[removed]"
MIN_SECRET_CHARACTERS: Final = 4
"""Shorter values are no secrets worth the name, and would tear holes into every line."""
MIN_PART_CHARACTERS: Final = 12
"""Of a longer one, its beginning alone is removed too: messages are cut anywhere."""
_PATTERNS: Final = (
    re.compile(
        r"-----BEGIN [^-]*(?:PRIVATE|SECRET)[^-]*-----.*?(?:-----END [^-]*-----|\Z)", re.DOTALL
    ),
    re.compile(r"\b[0-9a-f]{8}\.[A-Za-z0-9_-]{43}"),  # an enrolment token
    re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"),  # https://user:password@host
    re.compile(r"(?i)(?<=\bbearer )\S+|(?<=\bbasic )\S+"),
    re.compile(
        r"(?i)(?<![a-z])(?P<name>[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|psk|api[_-]?key"
        r"|credential|private[_-]?key)[\w.-]*[\"']?\s*[:=]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)"
    ),
)
"""What looks like a secret; a group `name` stays."""


class Scrubber:
    """Removes secrets.

        Scrubber(["hunter22"]).scrub("login with hunter22 failed")  # login with [removed] failed

    Nothing is promised of a secret that is neither known nor looks like one: that is why what is
    collected is chosen, item by item, and never a whole file of the device's.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        """Learns what is secret.

        Args:
            secrets: Values; short ones are not looked for.
        """
        known = {form for secret in secrets for form in _forms(secret)}
        long = sorted((each for each in known if len(each) >= MIN_SECRET_CHARACTERS), key=len)
        patterns = [re.escape(each) for each in reversed(long)]
        patterns += [re.escape(_part(each)) + r"\S*" for each in reversed(long) if _part(each)]
        self._known = re.compile("|".join(patterns)) if patterns else None

    def scrub(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(REMOVED, text)
        for pattern in _PATTERNS:
            text = pattern.sub(_replace, text)
        return text

    def scrub_value(self, value: object) -> object:
        """The same of every text in plain values, keys included."""
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, Mapping):
            return {self.scrub(str(key)): self.scrub_value(each) for key, each in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.scrub_value(each) for each in value]
        return value


def _forms(secret: str) -> set[str]:
    """A secret as it is, and as messages quote it."""
    plain = {secret, secret.strip()}
    return plain | {form[1:-1] for each in plain for form in (repr(each), json.dumps(each))}


def _part(secret: str) -> str:
    """The beginning that tells too much by itself; empty of a short one."""
    length = max(MIN_PART_CHARACTERS, len(secret) // 2)
    return secret[:length] if length < len(secret) else ""


def _replace(match: re.Match[str]) -> str:
    return (match.groupdict().get("name") or "") + REMOVED
