"""From what was typed to what a device is told: files are read and every value is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.bundle_archive import check_archive
from shoal.errors import ConfigError
from shoalctl.flash.bundle.fleet_trust import fleet_public_key
from shoalctl.flash.seeds.settings import (
    DEFAULT_USER,
    Bundle,
    DeviceSettings,
    check_hostname,
    check_ssh_keys,
    check_token,
    check_user,
)
from shoalctl.flash.seeds.wifi import Wifi

PASSPHRASE_VARIABLE = "SHOAL_WIFI_PASSPHRASE"  # noqa: S105 - its name, not its value
_MAX_TEXT_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class SeedOptions:
    """What was typed about a device, as it was typed."""

    hostname: str | None = None
    user: str = DEFAULT_USER
    ssh_keys: tuple[str, ...] = ()
    wifi_ssid: str | None = None
    wifi_passphrase_file: Path | None = None
    wifi_country: str | None = None
    wifi_hidden: bool = False
    bundle: Path | None = None
    fleet: Path = Path("fleet")
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None


def read_settings(
    options: SeedOptions,
    environment: Mapping[str, str],
    *,
    ask: Callable[[str], str] | None,
) -> DeviceSettings:
    """Checks what was typed about a device.

    Args:
        options: What was typed.
        environment: Where a Wi-Fi passphrase may be.
        ask: Asks a person for a secret; None without one.

    Raises:
        ConfigError: A value is wrong, or a file can't be read.
    """
    return DeviceSettings(
        hostname=None if options.hostname is None else check_hostname(options.hostname),
        user=check_user(options.user),
        ssh_keys=_ssh_keys(options.ssh_keys),
        wifi=_wifi(options, environment, ask),
        bundle=_bundle(options.bundle, options.fleet),
        token=_token(options),
    )


def _ssh_keys(given: tuple[str, ...]) -> tuple[str, ...]:
    keys: list[str] = []
    for value in given:
        literal = value.strip().startswith(("ssh-", "ecdsa-", "sk-")) and " " in value.strip()
        keys += check_ssh_keys(value if literal else _text("--ssh-key", Path(value)))
    return tuple(dict.fromkeys(keys))


def _wifi(
    options: SeedOptions, environment: Mapping[str, str], ask: Callable[[str], str] | None
) -> Wifi | None:
    ssid, country = options.wifi_ssid, options.wifi_country
    if ssid is None:
        if country or options.wifi_passphrase_file or options.wifi_hidden:
            raise ConfigError("the --wifi-... options need --wifi-ssid")
        return None
    if country is None:
        raise ConfigError("--wifi-ssid needs --wifi-country, whose rules the radio keeps: DE, US")
    if options.wifi_passphrase_file is not None:
        text = _text("--wifi-passphrase-file", options.wifi_passphrase_file)
        passphrase = text.removesuffix("\n").removesuffix("\r")
    elif PASSPHRASE_VARIABLE in environment:
        passphrase = environment[PASSPHRASE_VARIABLE]
    elif ask is not None:
        passphrase = ask(f"Passphrase of {ssid}")
    else:
        raise ConfigError(f"--wifi-ssid needs --wifi-passphrase-file or ${PASSPHRASE_VARIABLE}")
    return Wifi.derive(ssid, passphrase, country, hidden=options.wifi_hidden)


def _bundle(path: Path | None, fleet: Path) -> Bundle | None:
    """A bundle that the fleet signed, whole."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"--bundle {path}: {error.strerror}; make one with `shoal flash bundle`"
        ) from error
    manifest = check_archive(path, fleet_public_key(fleet))
    return Bundle(path.resolve(), sha256, manifest.arch, manifest.version)


def _token(options: SeedOptions) -> str | None:
    if options.token_file is not None:
        if options.token is not None:
            raise ConfigError("give --token or --token-file, not both")
        return check_token(_text("--token-file", options.token_file))
    return None if options.token is None else check_token(options.token)


def _text(option: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}") from error
    if len(content) > _MAX_TEXT_BYTES:
        raise ConfigError(f"{option} {path} is larger than {_MAX_TEXT_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option} {path} is not text in UTF-8") from error
