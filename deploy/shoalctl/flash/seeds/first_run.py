"""`firstrun.sh`: how Raspberry Pi OS bookworm is told its settings, before cloud-init came to it.

The kernel's command line names the script; systemd runs it as root in a minimal system and
reboots. There is no network yet, so what installs and enrols is left to a unit of the next boot.
"""

from __future__ import annotations

import shlex

from shoalctl.flash.edge_files import edge_text
from shoalctl.flash.seeds.first_boot import SCRIPT_PATH, first_boot_script
from shoalctl.flash.seeds.settings import DeviceSettings

FIRST_RUN_NAME = "firstrun.sh"
_CUSTOM = "/usr/lib/raspberrypi-sys-mods/imager_custom"
_USERCONF = "/usr/lib/userconf-pi/userconf"
_LOCKED = "*"
"""A password that none hashes to: the account is entered with a key."""

_FORGET_COMMAND_LINE = (
    r"sed -i -e 's| systemd\.run[^ ]*||g' "
    r"-e 's| systemd\.unit=kernel-command-line\.target||g' "
    '"$boot/cmdline.txt"'
)
UNIT_NAME = "shoal-first-boot.service"


def first_run_script(settings: DeviceSettings, *, volume_id: str) -> bytes:
    """The script of one device.

    Args:
        settings: What the device is told.
        volume_id: Serial number of the boot partition's file system, as `1A2B-3C4D`.
    """
    lines = [
        "#!/bin/sh",
        "# Written by `shoal flash image`; run once, by the kernel's command line.",
        'boot=$(dirname -- "$0")',
        f"custom={_CUSTOM}",
    ]
    if settings.hostname:
        lines += _hostname(settings.hostname)
    if settings.ssh_keys:
        lines += _login(settings)
    if settings.wifi:
        wifi = settings.wifi
        hidden = "-h " if wifi.hidden else ""
        words = f"{shlex.quote(wifi.ssid)} {wifi.key} {wifi.country}"
        lines += [f'"$custom" set_wlan {hidden}{words}', "rfkill unblock wifi"]
    if settings.bundle or settings.token:
        lines += _first_boot(volume_id)
    lines += [
        # Whatever failed above, the next boot is a normal one.
        f'rm -f "$boot/{FIRST_RUN_NAME}"',
        _FORGET_COMMAND_LINE,
        "exit 0",
    ]
    return ("\n".join(lines) + "\n").encode()


def _hostname(hostname: str) -> list[str]:
    return [f'"$custom" set_hostname {hostname}']


def _login(settings: DeviceSettings) -> list[str]:
    keys = " ".join(shlex.quote(key) for key in settings.ssh_keys)
    return [
        f"{_USERCONF} {settings.user} '{_LOCKED}'",
        f'"$custom" enable_ssh -k {keys}',
    ]


def _first_boot(volume_id: str) -> list[str]:
    return [
        f"cat >{SCRIPT_PATH} <<'SHOAL_FIRST_BOOT'",
        first_boot_script(volume_id).rstrip("\n"),
        "SHOAL_FIRST_BOOT",
        f"chmod 0700 {SCRIPT_PATH}",
        f"cat >/etc/systemd/system/{UNIT_NAME} <<'SHOAL_UNIT'",
        edge_text(f"{UNIT_NAME}.in").replace("@SCRIPT@", SCRIPT_PATH).rstrip("\n"),
        "SHOAL_UNIT",
        f"systemctl enable {UNIT_NAME}",
    ]
