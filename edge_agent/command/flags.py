"""What was typed after `shoal agent`, as keys of its configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from shoal.config import Flag
from shoal.endpoint import Endpoint
from shoal.errors import ConfigError


def keyword_arguments(given: Sequence[str] | None) -> dict[str, object]:
    """Those of an environment's constructor, each given as key=value.

    Raises:
        ConfigError: one is not that.
    """
    found: dict[str, object] = {}
    for each in given or ():
        key, equals, text = each.partition("=")
        if not equals or not key.strip().isidentifier():
            raise ConfigError(f"--kwargs {each!r}: give KEY=VALUE, such as render_mode=rgb_array")
        found[key.strip()] = _value(text)
    return found


def set_flags(settings: Sequence[str] | None) -> dict[str, Flag]:
    """What `--set` was given, by dotted keys.

    Raises:
        ConfigError: a setting is not key=value.
    """
    found: dict[str, Flag] = {}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {setting!r}: give KEY=VALUE, such as actor.chunk_steps=32")
        found[key.strip()] = Flag(f"--set {key.strip()}", _value(text))
    return found


def overrides(
    *,
    fleet: str | None,
    identity: Path | None,
    state_dir: Path | None,
    env: str | None,
    num_envs: int | None,
    seed: int | None,
    broker: str | None,
    server: str | None,
    settings: list[str] | None,
    mode: str | None = None,
    update_interval: int | None = None,
) -> dict[str, Flag]:
    """Flags by dotted keys; a flag of its own wins over `--set`.

    Raises:
        ConfigError: an address is not host:port, or a setting is not key=value.
    """
    found = set_flags(settings)
    flags = {
        "fleet": Flag("--fleet", fleet),
        "identity": Flag("--identity", identity.absolute() if identity is not None else None),
        "state_dir": Flag("--state-dir", state_dir.absolute() if state_dir is not None else None),
        "env.id": Flag("--env", env),
        "env.num_envs": Flag("--num-envs", num_envs),
        "env.seed": Flag("--seed", seed),
        "mode": Flag("--mode", mode),
        "gradients.update_interval": Flag("--update-interval", update_interval),
    }
    for name, table, address in (
        ("--broker", "broker", broker),
        ("--server", "parameter_server", server),
    ):
        if address is not None:
            endpoint = Endpoint.parse(address, what=name)
            flags[f"{table}.host"] = Flag(name, endpoint.host)
            flags[f"{table}.port"] = Flag(name, endpoint.port)
    return found | {key: flag for key, flag in flags.items() if flag.value is not None}


def _value(text: str) -> object:
    """A TOML value; what is none is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
