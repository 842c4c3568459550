"""What the agent of a bundle is told: `agent.toml`, `seed.json` and `policy.pub`."""

from __future__ import annotations

import json
import math
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from edge_agent.config import AgentConfig
from shoal.config import load_config
from shoal.endpoint import Endpoint
from shoal.errors import ConfigError
from shoalctl.flash.bundle.fleet_trust import FleetTrust

STATE_DIRECTORY: Final = "/var/lib/shoal"
IDENTITY_DIRECTORY: Final = f"{STATE_DIRECTORY}/identity"
DEFAULT_ENV: Final = "CartPole-v1"
SEED_SCHEMA: Final = 1
_MAX_CONFIG_BYTES: Final = 1 << 20


def device_config(trust: FleetTrust, template: Path | None, env: str | None) -> bytes:
    """The agent's configuration on a device.

    Args:
        trust: The fleet; its addresses are filled in where the template says none.
        template: A file of the user's.
        env: What the device steps; None: what the template says.

    Raises:
        ConfigError: The template is no configuration of an agent, or of another fleet.
    """
    tables = _read(template) if template is not None else {}
    where = str(template)
    if tables.get("fleet", trust.fleet) != trust.fleet:
        raise ConfigError(f"{where}: fleet = {tables['fleet']!r}, and --fleet is {trust.fleet}'s")
    for key, value in (("identity", IDENTITY_DIRECTORY), ("state_dir", STATE_DIRECTORY)):
        if tables.get(key, value) != value:
            raise ConfigError(f"{where}: {key} is {value} on a device: leave it out")
    top = {"fleet": trust.fleet, "identity": IDENTITY_DIRECTORY, "state_dir": STATE_DIRECTORY}
    filled = {**top, **{key: value for key, value in tables.items() if key not in top}}
    environment = _table(filled, "env", where)
    if env is not None or "id" not in environment:
        environment = {**environment, "id": env or DEFAULT_ENV}
    filled["env"] = environment
    for key, endpoint in (("broker", trust.broker), ("parameter_server", trust.parameter_server)):
        own = _table(filled, key, where)
        filled[key] = {"host": endpoint.host, "port": endpoint.port, **own}
    content = toml_text(filled).encode()
    _check(content, template)
    return content


def seed(trust: FleetTrust) -> bytes:
    """Where the device enrols, and which CA it must find there; nothing secret."""
    told = {
        "schema": SEED_SCHEMA,
        "fleet": trust.fleet,
        "host": trust.enrollment.host,
        "port": trust.enrollment.port,
        "ca_fingerprint": trust.fingerprint,
    }
    return json.dumps(told, indent=2, sort_keys=True).encode() + b"\n"


def public_key(trust: FleetTrust) -> bytes:
    """The key that policies and bundles are verified with, as an identity holds it."""
    return trust.public_key.hex().encode("ascii") + b"\n"


def address(endpoint: Endpoint) -> str:
    """As a manifest has it."""
    return str(endpoint)


def toml_text(tables: Mapping[str, object]) -> str:
    """A configuration as TOML.

    Raises:
        ConfigError: A value is of a kind that no configuration of ours has.
    """
    return "\n".join(_lines(tables, "")) + "\n"


def _lines(table: Mapping[str, object], name: str) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    below = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{_string(key)} = {_value(value)}" for key, value in plain.items()]
    if name:
        lines = ["", f"[{name}]", *lines]
    for key, value in below.items():
        lines += _lines(value, f"{name}.{_string(key)}" if name else _string(key))
    return lines


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _quoted(value)
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        case int() | float():
            return repr(value)
        case Mapping():
            inner = ", ".join(f"{_string(key)} = {_value(each)}" for key, each in value.items())
            return f"{{{inner}}}"
        case Sequence():
            return f"[{', '.join(_value(each) for each in value)}]"
    raise ConfigError(f"{value!r}: no configuration of an agent holds a {type(value).__name__}")


def _string(key: str) -> str:
    bare = key and key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _quoted(key)


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's; DEL alone is written out by neither and allowed by JSON only.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CONFIG_BYTES + 1)
        if len(content) > _MAX_CONFIG_BYTES:
            raise ConfigError(f"{path}: over {_MAX_CONFIG_BYTES} bytes")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _table(tables: Mapping[str, object], key: str, where: str) -> dict[str, object]:
    found = tables.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {key} must be a table, not {found!r}")
    return found


def _check(content: bytes, template: Path | None) -> None:
    """Checks it with the agent's own eyes."""
    with tempfile.TemporaryDirectory(prefix="shoal-bundle-") as scratch:
        path = Path(scratch, template.name if template is not None else "agent.toml")
        path.write_bytes(content)
        try:
            load_config(AgentConfig, path, environ={})
        except ConfigError as error:
            shown = str(template) if template is not None else "agent.toml"
            raise ConfigError(str(error).replace(str(path), shown)) from error
