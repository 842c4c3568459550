"""Configuration: frozen dataclasses from TOML, then `SHOAL_*` variables, then flags."""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import ConfigError

PREFIX = "SHOAL_"
NO_FILE = "configuration"
MAX_MEANT, LEAST_SHOWN = 2, 2
"""Keys in a message: that may have been meant, and of the table that should have been given."""
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """The value of an override, and the flag it came from, for messages.

    Attributes:
        name: as typed: "--broker", or "--set broker.port".
        value: what it says; None means the flag was not given.
    """

    name: str
    value: object


def load_config(
    cls: type[T],
    path: Path | None,
    *,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, object] | None = None,
) -> T:
    """Builds a configuration.

    Args:
        cls: A frozen dataclass; its fields may be dataclasses in turn.
        path: A TOML file, or None for defaults only. Paths in it are relative to its directory.
        environ: `SHOAL_BROKER__PORT=8883` sets `broker.port`; names that start none of `cls`'s
            keys are left alone, as other programs of ours read them.
        overrides: From flags: dotted key to value, or to a `Flag` where the flag is not called
            like the key; None means the flag was not given.

    Raises:
        ConfigError: The file is missing or malformed, a key is unknown, a value has the wrong type
            or lies out of its range. It names the file, variable or flag that said so.
    """
    tree = _read(path) if path is not None else {}
    where = _Sources(str(path) if path is not None else NO_FILE)
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name, text in sorted(environ.items()):
        keys = name.removeprefix(PREFIX).lower().split("__")
        if name.startswith(PREFIX) and keys[0] in fields:
            where.put(keys, name)
            _put(tree, keys, _Text(text), name)
    for dotted, given in (overrides or {}).items():
        flag = given if isinstance(given, Flag) else Flag(_flag_name(dotted), given)
        if flag.value is not None:
            where.put(dotted.split("."), flag.name)
            _put(tree, dotted.split("."), flag.value, flag.name)
    base = path.parent if path is not None else Path()
    return typing.cast("T", _build(cls, tree, where, "", base))


def read_table(
    cls: type[T], table: Mapping[str, object], *, key: str, source: str = "configuration"
) -> T:
    """Builds a dataclass from a table that `load_config` left as it was, a `dict[str, object]`.

    It is for tables whose keys are known only later, such as the settings of what another key
    names. Variables in it are read as the keys want them.

    Args:
        cls: A frozen dataclass; its fields may be dataclasses in turn.
        table: What was given.
        key: Where the table lies, such as `training.settings`, for messages.
        source: Who said so, for messages.

    Raises:
        ConfigError: A key is unknown, a value has the wrong type or lies out of its range.
    """
    return typing.cast("T", _build(cls, table, _Sources(source), f"{key}.", Path()))


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; give another with --config") from error
    except (OSError, ValueError) as error:  # not TOML, not UTF-8, a number of 5000 digits
        raise ConfigError(f"{path}: {error}") from error


class _Sources:
    """Where each key came from: the file, unless a variable or a flag said something else."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._named: dict[tuple[str, ...], str] = {}

    @property
    def hint(self) -> str:
        """Where a key may be given, if no file was."""
        return ", in a file: --config FILE" if self._file == NO_FILE else ""

    def put(self, keys: list[str], name: str) -> None:
        """A variable or flag sets a key, and with it everything below."""
        above = tuple(keys)
        for known in [known for known in self._named if known[: len(above)] == above]:
            del self._named[known]
        self._named[above] = name

    def of(self, dotted: str) -> str:
        """Who set a key, or the table it lies in."""
        keys = tuple(dotted.split("."))
        ends = range(len(keys), 0, -1)
        found = (self._named[keys[:end]] for end in ends if keys[:end] in self._named)
        return next(found, self._file)


def _flag_name(dotted: str) -> str:
    return f"--set {dotted}" if "." in dotted else f"--{dotted.replace('_', '-')}"


class _Text(str):
    """The value of a variable: read as TOML, unless the key wants text as it stands."""

    __slots__ = ()


def _parse_scalar(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return str(text)


def _put(tree: dict[str, Any], keys: list[str], value: object, name: str) -> None:
    for key in keys[:-1]:
        branch = tree.setdefault(key, {})
        if not isinstance(branch, dict):
            raise ConfigError(f"{name}: {key} is a value, not a table: it has no {keys[-1]}")
        tree = branch
    tree[keys[-1]] = value


def _build(cls: Any, tree: object, where: _Sources, prefix: str, base: Path) -> object:  # noqa: ANN401 a dataclass type
    if not isinstance(tree, Mapping):
        name = prefix.rstrip(".")
        form = f"a table: {_example(cls)}, not {tree!r}"
        raise ConfigError(f"{where.of(name)}: {name} must be {form}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in tree:
        if key not in fields:
            name = f"{prefix}{key!s}"
            nearest = _nearest(str(key), fields, _keys_below(cls, prefix))
            raise ConfigError(f"{where.of(name)}: unknown key {name}{nearest}")
    values: dict[str, object] = {}
    for name, field in fields.items():
        key = f"{prefix}{name}"
        if name in tree:
            values[name] = _convert(hints[name], tree[name], where, key, base)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where.of(key)}: {key} is missing; it must be given{where.hint}")
    try:
        return cls(**values)
    except ConfigError as error:  # it begins with the field's name
        source = where.of(f"{prefix}{str(error).partition(' ')[0].rstrip(':')}")
        raise ConfigError(f"{source}: {prefix}{error}") from error


def _nearest(key: str, known: Iterable[str], below: Sequence[str]) -> str:
    """What may have been meant: a key of a table below if called just so, else the closest one."""
    names = list(known)
    ends = {name: name.rpartition(".")[2] for name in below}
    meant = [name for name, end in ends.items() if end == key]
    meant = meant or difflib.get_close_matches(key, names, 1, 0.5)
    if not meant:
        close = difflib.get_close_matches(key, ends.values(), 1, 0.7)
        meant = [name for name, end in ends.items() if end in close]
    said = " or ".join(meant[:MAX_MEANT])
    return f"; did you mean {said}?" if said else f"; known keys: {', '.join(sorted(names))}"


def _keys_below(cls: Any, prefix: str) -> list[str]:  # noqa: ANN401 a dataclass type
    """The keys of every table in a table, dotted, those of the nearer tables first."""
    tables = [
        (f"{prefix}{name}.", option)
        for name, hint in typing.get_type_hints(cls).items()
        for option in (hint, *typing.get_args(hint))
        if dataclasses.is_dataclass(option)
    ]
    here = [f"{path}{field.name}" for path, table in tables for field in dataclasses.fields(table)]
    return here + [key for path, table in tables for key in _keys_below(table, path)]


def _example(cls: Any) -> str:  # noqa: ANN401 a dataclass type
    """How a table is written: with the keys that must be given, and two at least."""
    hints = typing.get_type_hints(cls)
    needed: list[dataclasses.Field[Any]] = []
    others: list[dataclasses.Field[Any]] = []
    for field in dataclasses.fields(cls):
        by_default = (field.default, field.default_factory)
        (needed if by_default == (dataclasses.MISSING,) * 2 else others).append(field)
    shown = needed + others[: max(0, LEAST_SHOWN - len(needed))]
    values = ('"..."' if hints[field.name] in (str, Path) else "..." for field in shown)
    pairs = [f"{field.name} = {value}" for field, value in zip(shown, values, strict=True)]
    return f"{{ {', '.join(pairs)} }}"


def _convert(hint: Any, value: object, where: _Sources, key: str, base: Path) -> object:  # noqa: ANN401 a type
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, value, where, key, base)
    if isinstance(value, _Text):
        as_it_stands = hint in (str, Path) or (origin is typing.Literal and value in args)
        value = str(value) if as_it_stands else _parse_scalar(value)
    if dataclasses.is_dataclass(hint):
        return _convert_table(hint, value, where, key, base)
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return origin(_convert(args[0], item, where, key, base) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return dict(value)
    if origin is typing.Literal and value in args:
        return value
    if origin is None and _fits(hint, value):
        return base / str(value) if hint is Path else float(value) if hint is float else value  # type: ignore[arg-type]
    raise ConfigError(f"{where.of(key)}: {key} = {value!r}; it must be {_describe(hint)}")


def _convert_union(
    options: tuple[Any, ...], value: object, where: _Sources, key: str, base: Path
) -> object:
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    for option in options[:-1]:
        try:
            return _convert(option, value, where, key, base)
        except ConfigError:
            continue
    return _convert(options[-1], value, where, key, base)


def _convert_table(cls: Any, value: object, where: _Sources, key: str, base: Path) -> object:  # noqa: ANN401 a dataclass type
    return value if isinstance(value, cls) else _build(cls, value, where, f"{key}.", base)


def _fits(hint: Any, value: object) -> bool:  # noqa: ANN401 a type
    if isinstance(value, bool):  # bool is an int in Python, and never meant as one here
        return hint in (bool, object)
    if hint is float and isinstance(value, int):
        return abs(value) <= sys.float_info.max
    allowed = {float: (int, float), Path: (str, Path)}.get(hint, hint)
    return isinstance(value, allowed)


def _describe(hint: Any) -> str:  # noqa: ANN401 a type
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in typing.get_args(hint))
    return f"of type {hint.__name__ if isinstance(hint, type) else hint}"
