"""The seed of cloud-init's NoCloud source: `user-data`, `meta-data` and `network-config`.

They are written as JSON, which YAML 1.2 contains: no value can break out of its quotes.
"""

from __future__ import annotations

import json

from shoalctl.flash.seeds.first_boot import SCRIPT_PATH, first_boot_script
from shoalctl.flash.seeds.settings import DeviceSettings
from shoalctl.flash.seeds.support import Family

_GROUPS = ("adm", "dialout", "plugdev", "sudo", "users", "video")
_BOARD_GROUPS = ("gpio", "i2c", "render", "spi")


def cloud_init_files(
    settings: DeviceSettings, family: Family, *, instance_id: str, volume_id: str
) -> dict[str, bytes]:
    """The seed files of one device, by name.

    Args:
        settings: What the device is told.
        family: Whose image it is.
        instance_id: Unique to this flash: cloud-init runs its first boot again when it changes.
        volume_id: Serial number of the boot partition's file system, as `1A2B-3C4D`.
    """
    name = {"local-hostname": settings.hostname} if settings.hostname else {}
    return {
        "meta-data": _json({"instance-id": instance_id, "dsmode": "local", **name}),
        "user-data": b"#cloud-config\n" + _json(_user_data(settings, family, volume_id)),
        "network-config": _json(_network(settings, family)),
    }


def _user_data(settings: DeviceSettings, family: Family, volume_id: str) -> dict[str, object]:
    data: dict[str, object] = {"ssh_pwauth": False}
    if settings.hostname:
        data |= {
            "hostname": settings.hostname,
            "preserve_hostname": False,
            "manage_etc_hosts": True,
        }
    commands: list[list[str]] = []
    if settings.ssh_keys:
        data["users"] = [_user(settings, family)]
        # sshd is off in the images of Raspberry Pi OS, and is called `sshd` elsewhere.
        commands.append(["sh", "-c", "systemctl enable --now ssh || systemctl enable --now sshd"])
        if family is Family.RASPBERRY_PI_OS:
            data["enable_ssh"] = True
    if settings.wifi:
        commands.append(["sh", "-c", "command -v rfkill >/dev/null && rfkill unblock wifi || true"])
    if settings.bundle or settings.token:
        data["write_files"] = [
            {
                "path": SCRIPT_PATH,
                "permissions": "0700",
                "content": first_boot_script(volume_id),
            }
        ]
        commands.append([SCRIPT_PATH])
    if commands:
        data["runcmd"] = commands
    return data


def _user(settings: DeviceSettings, family: Family) -> dict[str, object]:
    board = _BOARD_GROUPS if family is Family.RASPBERRY_PI_OS else ()
    return {
        "name": settings.user,
        "groups": [*_GROUPS, *board],
        "shell": "/bin/bash",
        "lock_passwd": True,
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": list(settings.ssh_keys),
    }


def _network(settings: DeviceSettings, family: Family) -> dict[str, object]:
    # This file replaces the image's own, so the cable's interface has to be in it again. Boards
    # call it eth0; elsewhere it may be any e... such as enp1s0.
    wired: dict[str, object] = {"dhcp4": True, "optional": True}
    if family is Family.GENERIC:
        wired["match"] = {"name": "e*"}
    network: dict[str, object] = {"version": 2, "ethernets": {"eth0": wired}}
    wifi = settings.wifi
    if wifi:
        hidden = {"hidden": True} if wifi.hidden else {}
        network["wifis"] = {
            "wlan0": {
                "dhcp4": True,
                "optional": True,
                "regulatory-domain": wifi.country,
                "access-points": {wifi.ssid: {"password": wifi.key, **hidden}},
            }
        }
    return network  # without a key `network` around it, which older versions don't know


def _json(value: object) -> bytes:
    # Not as \u...: YAML does not put surrogate pairs together.
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
