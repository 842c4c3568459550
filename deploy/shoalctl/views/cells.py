"""What all views are made of: values from the server's messages, and cells of tables."""

from __future__ import annotations

from shoalctl.output import NOTHING, Column, Item, Value, duration, size

SHORT_DIGEST = 12


def age(seconds: float) -> float | None:
    """An age of the server's: negative means never."""
    return None if seconds < 0 else seconds


def slug(name: str, prefix: str) -> str:
    """The name of a value of an enum, as programs get it."""
    return name.removeprefix(prefix).lower()


def text(item: Item, key: str) -> str:
    """A value as text."""
    value = item[key]
    return NOTHING if value is None or value == "" else str(value)


def number(value: Value) -> float:
    """A value as a number; 0 for what is none."""
    return float(value) if isinstance(value, int | float) else 0.0


def age_text(item: Item, key: str) -> str:
    """An age in words."""
    value = item[key]
    return duration(value if isinstance(value, int | float) else None)


def ago(told: str) -> str:
    """How long ago in words, of what `age_text` said."""
    return told if told == "never" else f"{told} ago"


def short(item: Item, key: str) -> str:
    """The beginning of a digest."""
    return str(item[key])[:SHORT_DIGEST] or NOTHING


def measured(microseconds: float) -> float | None:
    """What was measured; None: nothing was."""
    return microseconds or None


def plain(title: str, key: str, *, wide: bool = False, right: bool = False) -> Column:
    """A column of text."""
    return Column(title, lambda item: text(item, key), wide=wide, right=right)


def count(title: str, key: str, *, wide: bool = False) -> Column:
    """A column of numbers."""
    return plain(title, key, wide=wide, right=True)


def bytes_cell(title: str, key: str) -> Column:
    """A column of sizes."""
    return Column(title, lambda item: size(number(item[key])), wide=True, right=True)


def aged(title: str, key: str, *, wide: bool = False) -> Column:
    """A column of ages."""
    return Column(title, lambda item: age_text(item, key), wide=wide, right=True)
