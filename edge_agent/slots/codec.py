"""The state of the slots as JSON, and back; what is read is checked, field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, TypeVar, cast

from edge_agent.slots.state import (
    MAX_HISTORY,
    Content,
    Entry,
    Happening,
    Name,
    Release,
    Slot,
    State,
    Trial,
)

SCHEMA: Final = 1
MAX_BYTES: Final = 256 * 1024
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class Malformed(ValueError):
    """It isn't what it should be."""


def encode(state: State) -> bytes:
    """The state as JSON, for a file that people read too."""
    return json.dumps(as_dict(state), indent=1).encode() + b"\n"


def as_dict(state: State) -> dict[str, object]:
    """The state as plain values."""
    trial = state.trial
    return {
        "schema": SCHEMA,
        "current": state.current,
        "trial": None
        if trial is None
        else {
            "number": trial.number,
            "reason": trial.reason,
            "since_unix_s": trial.since_unix_s,
            "boot_id": trial.boot_id,
            "deaths": trial.deaths,
        },
        "running_boot_id": state.running_boot_id,
        "slots": {name.value: _slot(state.slot(name)) for name in Name},
        "entries": state.entries,
        "history": [_entry(entry) for entry in state.history],
    }


def decode(data: bytes) -> State:
    """Reads what `encode` wrote.

    Raises:
        Malformed: It isn't that.
    """
    table = read_table(data, MAX_BYTES)
    slots = _get(table, "slots", dict)
    history = tuple(_read_entry(entry) for entry in _get(table, "history", list))
    if len(history) > MAX_HISTORY:
        raise Malformed(f"over {MAX_HISTORY} entries")
    state = State(
        current=_maybe(table.get("current"), lambda name: _one_of(Name, name)),
        trial=_maybe(table.get("trial"), _read_trial),
        running_boot_id=_maybe(table.get("running_boot_id"), _text),
        a=_read_slot(slots.get("a")),
        b=_read_slot(slots.get("b")),
        history=history,
        entries=_get(table, "entries", int),
    )
    if state.current is None and state.trial is not None:
        raise Malformed("a trial of no slot")
    if history and history[-1].number > state.entries:
        raise Malformed("more entries than there were")
    return state


def read_table(data: bytes, limit_bytes: int) -> Mapping[str, object]:
    """Reads a JSON object of our schema.

    Raises:
        Malformed: It is none, or too large.
    """
    if len(data) > limit_bytes:
        raise Malformed(f"over {limit_bytes} bytes")
    try:
        table = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from error
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        raise Malformed(f"not of schema {SCHEMA}")
    return table


def text(table: Mapping[str, object], key: str) -> str:
    """A string of a table.

    Raises:
        Malformed: It isn't there.
    """
    return _get(table, key, str)


def number(table: Mapping[str, object], key: str) -> int:
    """A whole number of a table.

    Raises:
        Malformed: It isn't there.
    """
    return _get(table, key, int)


def _slot(slot: Slot) -> dict[str, object]:
    return {"content": slot.content, "release": _release(slot.release), "reason": slot.reason}


def _release(release: Release | None) -> dict[str, str] | None:
    if release is None:
        return None
    return {
        "digest": release.digest,
        "bundle_version": release.bundle_version,
        "shoal_version": release.shoal_version,
    }


def _entry(entry: Entry) -> dict[str, object]:
    return {
        "number": entry.number,
        "at_unix_s": entry.at_unix_s,
        "happening": entry.happening,
        "slot": entry.slot,
        "release": _release(entry.release),
        "reason": entry.reason,
    }


def _read_slot(value: object) -> Slot:
    table = _table(value)
    content = _one_of(Content, table.get("content"))
    release = _maybe(table.get("release"), _read_release)
    if (release is None) is not (content is Content.EMPTY):
        raise Malformed(f"a slot that is {content}, with {release}")
    return Slot(content, release, _get(table, "reason", str))


def _read_release(value: object) -> Release:
    table = _table(value)
    return Release(
        _get(table, "digest", str),
        _get(table, "bundle_version", str),
        _get(table, "shoal_version", str),
    )


def _read_trial(value: object) -> Trial:
    table = _table(value)
    return Trial(
        number=_get(table, "number", int),
        reason=_get(table, "reason", str),
        since_unix_s=_get(table, "since_unix_s", int),
        boot_id=_get(table, "boot_id", str),
        deaths=_get(table, "deaths", int),
    )


def _read_entry(value: object) -> Entry:
    table = _table(value)
    return Entry(
        number=_get(table, "number", int),
        at_unix_s=_get(table, "at_unix_s", int),
        happening=_one_of(Happening, table.get("happening")),
        slot=_one_of(Name, table.get("slot")),
        release=_maybe(table.get("release"), _read_release),
        reason=_get(table, "reason", str),
    )


def _get(table: Mapping[str, object], key: str, kind: type[T]) -> T:
    value = table.get(key)
    if type(value) is not kind:
        raise Malformed(f"{key} is {str(value)[:40]!r}")
    return value


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Malformed(f"{str(value)[:40]!r} is no object")
    return cast("Mapping[str, object]", value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{str(value)[:40]!r} is no text")
    return value


def _one_of(kind: type[E], value: object) -> E:
    try:
        return kind(_text(value))
    except ValueError as error:
        raise Malformed(str(error)) from error


def _maybe(value: object, read: Callable[[object], T]) -> T | None:
    return None if value is None else read(value)
