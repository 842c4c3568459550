"""What a command writes to stdout: a table for people, or one versioned envelope for programs."""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TextIO

from shoal.errors import ConfigError

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]
Item = Mapping[str, Value]

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
NOTHING = "-"


class Format(StrEnum):
    """How a command writes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        title: In capitals, as it is shown.
        cell: The text of an item in it.
        wide: Whether it is shown in the wide table only.
        right: Whether it holds numbers, which are compared from their right end.
    """

    title: str
    cell: Callable[[Item], str]
    wide: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Items of one kind, and how a table shows them.

    Attributes:
        schema: Name and version of the items, e.g. `shoal.v1.DeviceList`.
        items: One a row.
        columns: Name first, age last.
        empty: The sentence for people when there are none.
        extra: More keys of the envelope.
        summary: Rows below the items, for tables only.
    """

    schema: str
    items: Sequence[Item]
    columns: Sequence[Column]
    empty: str
    extra: Mapping[str, Value] = field(default_factory=dict)
    summary: Sequence[Item] = ()


def write_listing(listing: Listing, how: Format, out: TextIO | None = None) -> None:
    """Writes a listing, to stdout unless told otherwise.

    Raises:
        ConfigError: YAML is asked for and its library is not installed.
    """
    out = out or sys.stdout
    if how in {Format.JSON, Format.YAML}:
        write_envelope(listing.schema, listing.items, how, out, extra=listing.extra)
    elif listing.items:
        write_table(listing, out, wide=how is Format.WIDE)
    else:
        out.write(f"{listing.empty}\n")


def write_envelope(
    schema: str,
    items: Sequence[Item],
    how: Format,
    out: TextIO | None = None,
    *,
    extra: Mapping[str, Value] | None = None,
) -> None:
    """Writes exactly one envelope, `{"schema": ..., "items": [...]}`, to stdout if not told.

    Raises:
        ConfigError: YAML is asked for and its library is not installed.
    """
    out = out or sys.stdout
    envelope = plain({"schema": schema, **(extra or {}), "items": items})
    if how is Format.YAML:
        try:
            import yaml
        except ModuleNotFoundError as error:
            raise ConfigError("-o yaml needs PyYAML: pip install 'shoal[ops]'") from error
        yaml.safe_dump(envelope, out, sort_keys=False, allow_unicode=True)
    else:
        json.dump(envelope, out, indent=2, ensure_ascii=False, allow_nan=False)
        out.write("\n")


def write_table(listing: Listing, out: TextIO, *, wide: bool) -> None:
    """Writes a table; without a terminal its rows are as long as they need to be."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = [column for column in listing.columns if wide or not column.wide]
    table = Table(box=box.SIMPLE_HEAD if out.isatty() else None, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True)
    for item in listing.items:
        table.add_row(*(Text(printable(column.cell(item))) for column in columns))
    if listing.summary and out.isatty():
        table.add_section()
    for item in listing.summary:
        table.add_row(*(Text(printable(column.cell(item))) for column in columns))
    unlimited = None if out.isatty() else sum(40 + len(column.title) for column in columns) + 4096
    Console(file=out, width=unlimited, highlight=False).print(table)


def printable(text: str) -> str:
    """The text with control characters written out: what a device says can't steer a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def plain(value: Value) -> Value:
    """The same in lists and dicts that JSON and YAML both write; what is no number is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(entry) for entry in value]
    return value


def duration(seconds: float | None) -> str:
    """A length of time as people say it, in its two largest units: `42s`, `5m3s`, `2h`, `3d4h`."""
    if seconds is None:
        return "never"
    if not math.isfinite(seconds):
        return NOTHING
    whole = max(0, int(seconds))
    for unit_s, unit, rest_s, rest in (
        (DAY_S, "d", HOUR_S, "h"),
        (HOUR_S, "h", MINUTE_S, "m"),
        (MINUTE_S, "m", 1, "s"),
    ):
        if whole >= unit_s:
            remainder = whole % unit_s // rest_s
            return f"{whole // unit_s}{unit}" + (f"{remainder}{rest}" if remainder else "")
    return f"{whole}s"


def size(count: float | None) -> str:
    """A number of bytes as people say it: `512 B`, `68.6 KB`, `1.2 GB`; a KB is 1000 bytes."""
    if count is None:
        return NOTHING
    scaled = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(scaled) < 999.95:  # noqa: PLR2004 - what is rounded to 1000.0 belongs to the next unit
            return f"{scaled:.0f} {unit}" if unit == "B" else f"{scaled:.1f} {unit}"
        scaled /= 1000
    return f"{scaled:.1f} TB"
