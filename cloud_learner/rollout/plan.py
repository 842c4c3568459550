"""What an operator asks of a rollout: what, to whom, in which waves, and when to give it up."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, Self

from shoal.errors import ConfigError

MAX_WAVES: Final = 32
MAX_EPISODES: Final = 1_000_000
MAX_TIMEOUT_S: Final = 30 * 86_400.0
MAX_DEVICES: Final = 1_000_000
MAX_TEXT: Final = 300
"""Characters of a reason, a version or the patterns of device ids."""
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Kind(StrEnum):
    """What is rolled out."""

    POLICY = "policy"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Wave:
    """How many devices have it once this wave is open, those of earlier waves among them.

    Attributes:
        devices: A number of them; 0: a share is given.
        share: A part of all that it is for, over 0 and up to 1; 0: a number is given.
    """

    devices: int = 0
    share: float = 0.0

    def __post_init__(self) -> None:
        """Checks it.

        Raises:
            ConfigError: It is neither a number nor a share.
        """
        number = 1 <= self.devices <= MAX_DEVICES and self.share == 0.0
        share = self.devices == 0 and 0.0 < self.share <= 1.0
        if not (number or share):
            raise ConfigError(f"wave {self}: give a number of devices, or a share such as 10%")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `5` or `10%`.

        Raises:
            ConfigError: It is neither.
        """
        given = text.strip()
        try:
            if given.endswith("%"):
                return cls(share=float(given.removesuffix("%")) / 100.0)
            return cls(devices=int(given))
        except ValueError:
            raise ConfigError(
                f"wave {given!r}: give a number of devices or a share, such as 1,10%,100%"
            ) from None

    def size(self, devices: int) -> int:
        """How many of so many devices have it; at least one of any."""
        wanted = self.devices or math.ceil(self.share * devices - 1e-9)
        return min(devices, max(1, wanted))

    def __str__(self) -> str:
        """As it is typed."""
        return str(self.devices) if self.devices else f"{100 * self.share:g}%"


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for.

    Plan(Kind.POLICY, "120", parse_waves("1,10%,100%"))

    Attributes:
        kind: What is rolled out.
        version: Of the policy, a number, or of the agent's bundle.
        waves: Each at least as large as the one before; the last is 100%.
        episodes: K: as many a device acts on it before it counts as succeeded.
        wave_timeout_s: As long it has for that.
        max_failures: Part of the devices that may fail, 0 to 1.
        min_failures: As many fail before that part counts while a wave is not through.
        devices: Glob patterns of device ids, divided by commas; empty: every device.
        reason: For people.
    """

    kind: Kind
    version: str
    waves: tuple[Wave, ...]
    episodes: int = 3
    wave_timeout_s: float = 600.0
    max_failures: float = 0.05
    min_failures: int = 1
    devices: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        """Checks it.

        Raises:
            ConfigError: Something is out of its range.
        """
        _require(0 < len(self.version) <= MAX_TEXT, "version", self.version, "a version")
        if self.kind is Kind.POLICY:
            number = self.version.isascii() and self.version.isdecimal() and len(self.version) < 19  # noqa: PLR2004 - digits of 2**62
            _require(number and int(self.version) > 0, "policy", self.version, "its number")
        _require(1 <= len(self.waves) <= MAX_WAVES, "waves", len(self.waves), f"1 to {MAX_WAVES}")
        whole = self.waves[-1].share == 1.0
        _require(whole, "the last wave", str(self.waves[-1]), "100%, with --devices to limit it")
        for before, after in zip(self.waves, self.waves[1:], strict=False):
            same = bool(before.devices) == bool(after.devices)
            grows = after.devices + after.share > before.devices + before.share
            _require(not same or grows, "wave", str(after), f"more than {before}: waves grow")
            _require(
                not (before.share and after.devices), "wave", str(after), "numbers before shares"
            )
        _require(1 <= self.episodes <= MAX_EPISODES, "episodes", self.episodes, "1 or more")
        _require(
            0 < self.wave_timeout_s <= MAX_TIMEOUT_S,
            "wave-timeout",
            self.wave_timeout_s,
            "over 0 s, up to 30 days",
        )
        _require(0 <= self.max_failures <= 1, "max-failures", self.max_failures, "0% to 100%")
        _require(
            1 <= self.min_failures <= MAX_DEVICES, "min-failures", self.min_failures, "1 or more"
        )
        for name in ("devices", "reason"):
            text = getattr(self, name)
            _require(len(text) <= MAX_TEXT, name, text[:40], f"{MAX_TEXT} characters at most")

    def is_for(self, device_id: str) -> bool:
        """Whether a device is among those that it is for."""
        patterns = [each.strip() for each in self.devices.split(",") if each.strip()]
        return not patterns or any(fnmatchcase(device_id, each) for each in patterns)


def parse_waves(text: str) -> tuple[Wave, ...]:
    """Reads `1,10%,100%`.

    Raises:
        ConfigError: A part of it is no wave.
    """
    return tuple(Wave.parse(part) for part in text.split(","))


def parse_share(text: str) -> float:
    """Reads `5%` or `0.05`.

    Raises:
        ConfigError: It is neither.
    """
    given = text.strip()
    try:
        if given.endswith("%"):
            return float(given.removesuffix("%")) / 100.0
        return float(given)
    except ValueError:
        raise ConfigError(f"{text!r} is no share: give one such as 5%") from None


def parse_duration(text: str) -> float:
    """Reads `90s`, `10m`, `1h`, `2d` or `1h30m`, in seconds.

    Raises:
        ConfigError: It is none.
    """
    given = text.strip()
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", given, re.ASCII):
        raise ConfigError(f"{text!r} is no length of time: give one such as 90s, 10m or 1h30m")
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", given)
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def _require(ok: bool, key: str, value: object, allowed: str) -> None:  # noqa: FBT001 - a guard
    if not ok:
        raise ConfigError(f"{key} {value!r} cannot be used: give {allowed}")
