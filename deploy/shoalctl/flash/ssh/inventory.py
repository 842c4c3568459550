"""The inventory file: many hosts, what each is called, and which bundle its kind gets.

[bundles]                       # by architecture; a path is relative to this file
aarch64 = "shoal-bundle-1.4.0-aarch64-cp311.tar"

[defaults]                      # for hosts that don't say
user = "pi"

[[hosts]]
name = "arm-1"
host = "10.0.0.4"
device_id = "arm-1"
labels = { site = "lab" }
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from shoal.errors import ConfigError
from shoal.topics import check_device_id
from shoalctl.flash.ssh.host import MAX_PORT, Host, parse_host

MAX_INVENTORY_BYTES = 4 << 20
MAX_HOSTS = 10_000
_TABLES = ("bundles", "defaults", "hosts")
_DEFAULTS = ("port", "user")
_HOST_KEYS = ("bundles", "device_id", "host", "labels", "name", "port", "user")


def read_inventory(path: Path) -> tuple[Host, ...]:
    """The hosts of an inventory file, in its order.

    Raises:
        ConfigError: It can't be read, or a value in it is wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_INVENTORY_BYTES + 1)
        if len(content) > MAX_INVENTORY_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_INVENTORY_BYTES} bytes")
        return parse_inventory(content.decode(), path.parent, what=str(path))
    except OSError as error:
        raise ConfigError(f"--inventory {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--inventory {path} is not text in UTF-8") from error


def parse_inventory(text: str, directory: Path, *, what: str) -> tuple[Host, ...]:
    """The hosts in the text of an inventory.

    Args:
        text: TOML.
        directory: What the paths of bundles are relative to.
        what: What the text is called in messages.

    Raises:
        ConfigError: A value in it is wrong.
    """
    try:
        root = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{what} is not TOML: {error}") from error
    _check_keys(root, _TABLES, what)
    defaults = _table(root.get("defaults", {}), f"{what}: [defaults]")
    _check_keys(defaults, _DEFAULTS, f"{what}: [defaults]")
    shared = _bundles(root.get("bundles", {}), directory, f"{what}: [bundles]")
    entries = root.get("hosts", [])
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{what} has no [[hosts]]: add one with a name and a host")
    if len(entries) > MAX_HOSTS:
        raise ConfigError(f"{what} has {len(entries)} hosts, and {MAX_HOSTS} are the most")
    hosts = tuple(
        _host(_table(entry, f"{what}: host {number}"), defaults, shared, directory, what, number)
        for number, entry in enumerate(entries, 1)
    )
    check_unique(hosts)
    return hosts


def check_unique(hosts: Iterable[Host]) -> None:
    """Checks that no host is there twice.

    Raises:
        ConfigError: Two have one name, one place or one device id.
    """
    seen: dict[tuple[str, object], str] = {}
    for host in hosts:
        keys: list[tuple[str, object]] = [("name", host.name)]
        keys.append(("address", (host.address, host.port)))
        if host.device_id is not None:
            keys.append(("device_id", host.device_id))
        for key in keys:
            if key in seen:
                shown = host.login if key[0] == "address" else key[1]
                raise ConfigError(f"two hosts have the {key[0]} {shown}: {seen[key]}, {host.name}")
            seen[key] = host.name


def select(hosts: Sequence[Host], limits: Sequence[str]) -> tuple[Host, ...]:
    """The hosts that one of the limits names.

    Args:
        hosts: All of them.
        limits: Names, patterns of names such as `pi-*`, or labels such as `site=lab`; more with
            commas. Empty: every host.

    Raises:
        ConfigError: A limit selects nothing.
    """
    words = [word.strip() for limit in limits for word in limit.split(",") if word.strip()]
    if not words:
        return tuple(hosts)
    for word in words:
        if not any(_matches(host, word) for host in hosts):
            near = difflib.get_close_matches(word, [host.name for host in hosts], n=1)
            raise ConfigError(
                f"--limit {word}: no host has that name or label"
                + (f"; did you mean {near[0]}?" if near else "")
            )
    return tuple(host for host in hosts if any(_matches(host, word) for word in words))


def _matches(host: Host, word: str) -> bool:
    key, equals, value = word.partition("=")
    if equals:
        return key in host.labels and fnmatchcase(host.labels[key], value)
    return fnmatchcase(host.name, word)


def _host(
    entry: Mapping[str, object],
    defaults: Mapping[str, object],
    shared: Mapping[str, Path],
    directory: Path,
    what: str,
    number: int,
) -> Host:
    name = entry.get("name", entry.get("host"))
    where = f"{what}: host {number}" + (f" ({name})" if isinstance(name, str) else "")
    _check_keys(entry, _HOST_KEYS, where)
    if "host" not in entry:
        raise ConfigError(f"{where} has no `host`: give its name or address")
    typed = parse_host(_text(entry["host"], f"{where}: host"))
    device_id = entry.get("device_id")
    labels = _table(entry.get("labels", {}), f"{where}: labels")
    own = _bundles(entry.get("bundles", {}), directory, f"{where}: bundles")
    user = entry.get("user", typed.user or defaults.get("user"))
    return Host(
        name=_text(name, f"{where}: name"),
        address=typed.address,
        port=_port(entry.get("port", typed.port or defaults.get("port")), f"{where}: port"),
        user=None if user is None else _user(user, f"{where}: user"),
        device_id=None
        if device_id is None
        else check_device_id(_text(device_id, f"{where}: device_id")),
        bundles={**shared, **own},
        labels={key: _text(value, f"{where}: label {key}") for key, value in labels.items()},
    )


def _user(value: object, where: str) -> str:
    user = _text(value, where)
    if parse_host(f"{user}@host").user != user:
        raise ConfigError(f"{where}: {user!r} is no user name")
    return user


def _port(value: object, where: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_PORT:
        raise ConfigError(f"{where} is {value!r}: give a number from 1 to {MAX_PORT}")
    return value


def _bundles(value: object, directory: Path, where: str) -> dict[str, Path]:
    table = _table(value, where)
    return {arch: directory / _text(path, f"{where}: {arch}") for arch, path in table.items()}


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table, it is {value!r}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ConfigError(f"{where} must be a text, it is {value!r}")
    return value


def _check_keys(table: Mapping[str, object], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it may have {', '.join(known)}"
            raise ConfigError(f"{where} has an unknown key {key!r}: {hint}")
