"""What a device is told: valid for who reads it, unique to each flash, no passphrase anywhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.slots.layout import USER
from shoal.errors import ConfigError
from shoalctl.flash.seeds.cloud_init import cloud_init_files
from shoalctl.flash.seeds.first_run import first_run_script
from shoalctl.flash.seeds.kernel_command_line import (
    with_country,
    with_first_run,
    with_instance_id,
)
from shoalctl.flash.seeds.settings import (
    Bundle,
    DeviceSettings,
    check_hostname,
    check_ssh_keys,
    check_token,
    check_user,
)
from shoalctl.flash.seeds.support import BootFiles, Family, SeedFormat, asked_for, support_of
from shoalctl.flash.seeds.wifi import Wifi, check_country

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINczLgp/3TjOAnQ5iGsj8396quk+5Zb1yql+QdkDLXWk me@home"
TOKEN = "one-time-token-0815"
PASSPHRASE = "correct horse battery"
FULL = DeviceSettings(
    hostname="pi-1",
    user="ops",
    ssh_keys=(KEY,),
    wifi=Wifi.derive("Fisch & Netz", PASSPHRASE, "de"),
    bundle=Bundle(Path("bundle"), "0" * 64),
    token=TOKEN,
)


def seeds(
    settings: DeviceSettings = FULL, family: Family = Family.RASPBERRY_PI_OS
) -> dict[str, bytes]:
    return cloud_init_files(settings, family, instance_id="pi-1-77", volume_id="1A2B-3C4D")


def parsed(name: str, settings: DeviceSettings = FULL, family: Family = Family.GENERIC) -> object:
    return yaml.safe_load(seeds(settings, family)[name])


@pytest.mark.parametrize(
    ("ssid", "passphrase", "key"),
    [  # IEEE 802.11-2020, J.4.2
        ("IEEE", "password", "f42c6fc52df0ebef9ebb4b90b38a5f902e83fe1b135a70e23aed762e9710a12e"),
        (
            "ThisIsASSID",
            "ThisIsAPassword",
            "0dc0d6eb90555ed6419756b9a15ec3e3209b63df707dd508d14581f8982721af",
        ),
        (
            "Z" * 32,
            "a" * 32,
            "becb93866bb8c3832cb777c2f559807c8c59afcb6eae734885001300a981cc62",
        ),
    ],
)
def test_the_key_of_a_network_is_the_standards(ssid: str, passphrase: str, key: str) -> None:
    assert Wifi.derive(ssid, passphrase, "DE").key == key


def test_a_derived_key_is_taken_as_it_is() -> None:
    assert Wifi.derive("net", "AB" * 32, "DE").key == "ab" * 32


@pytest.mark.parametrize(
    ("ssid", "passphrase", "country", "words"),
    [
        ("", PASSPHRASE, "DE", "1-32 bytes"),
        ("ä" * 17, PASSPHRASE, "DE", "1-32 bytes"),
        ("a\nb", PASSPHRASE, "DE", "printable"),
        ("net", "seven77", "DE", "7 characters: WPA wants 8-63"),
        ("net", "x" * 64, "DE", "64 characters"),
        ("net", "pässwörtchen", "DE", "ASCII"),
        ("net", PASSPHRASE, "UK", "is GB"),
        ("net", PASSPHRASE, "Germany", "two letters"),
        ("net", PASSPHRASE, "XX", "two letters"),
    ],
)
def test_what_is_wrong_with_a_network_is_said(
    ssid: str, passphrase: str, country: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Wifi.derive(ssid, passphrase, country)
    assert passphrase not in str(caught.value)


def test_countries_are_written_in_capitals() -> None:
    assert check_country("de") == "DE"


@pytest.mark.parametrize("name", ["", "-a", "a-", "Pi", "pi_1", "a.b", "x" * 64, "pi 1", "$(id)"])
def test_what_is_no_hostname_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="1-63 of a-z"):
        check_hostname(name)


@pytest.mark.parametrize("name", ["", "root", "Pi", "1pi", "a b", "x" * 32, "a;b"])
def test_what_is_no_user_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="user"):
        check_user(name)


def test_nobody_logs_in_as_whom_the_agent_runs_as() -> None:
    """Who logs in may become root: the agent would be one step from it."""
    assert DeviceSettings().user != USER
    with pytest.raises(ConfigError, match="the agent runs as that"):
        check_user(USER)


def test_public_keys_are_read_from_a_file_with_comments() -> None:
    assert check_ssh_keys(f"# mine\n\n{KEY}\n") == (KEY,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no SSH public key"),
        ("hello", "must start with"),
        ("ssh-ed25519 AAAA", "damaged"),
        (KEY.replace("ssh-ed25519", "ssh-rsa"), "damaged"),
        (KEY[:60], "damaged"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n", "private SSH key"),
    ],
)
def test_what_is_no_public_key_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_ssh_keys(text)
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "  ", "two words", "x" * 5000, "nul\0", "ü"])
def test_what_is_no_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ConfigError, match="enroll token create") as caught:
        check_token(token)
    assert not token.strip() or token not in str(caught.value)


def test_secrets_are_not_in_what_is_printed_of_settings() -> None:
    shown = repr(FULL)
    assert FULL.wifi is not None
    assert TOKEN not in shown
    assert FULL.wifi.key not in shown


@example(ssid="\N{FISH}", hostname="a", comment="")  # beyond the 16 bits of \u
@given(
    ssid=st.text(min_size=1, max_size=10).filter(str.isprintable),
    hostname=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True),
    comment=st.text(st.characters(codec="ascii", categories=["L", "P", "S"]), max_size=20),
)
def test_no_value_breaks_out_of_its_place(ssid: str, hostname: str, comment: str) -> None:
    key = f"{KEY} {comment}"
    wifi = Wifi("x" if len(ssid.encode()) > 32 else ssid, "0" * 64, "DE")
    settings = DeviceSettings(hostname=hostname, ssh_keys=(key,), wifi=wifi)
    user_data = parsed("user-data", settings)
    network = parsed("network-config", settings)
    assert isinstance(user_data, dict)
    assert isinstance(network, dict)
    assert user_data["hostname"] == hostname
    assert user_data["users"][0]["ssh_authorized_keys"] == [key]
    points = network["wifis"]["wlan0"]["access-points"]
    assert points == {wifi.ssid: {"password": "0" * 64}}
    script = first_run_script(settings, volume_id="1A2B-3C4D").decode()
    line = next(line for line in script.splitlines() if "set_wlan" in line)
    assert shlex.split(line) == ["$custom", "set_wlan", wifi.ssid, "0" * 64, "DE"]
    checked = subprocess.run(["sh", "-n"], input=script.encode(), check=False, capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_user_data_is_a_cloud_config_that_turns_ssh_on_for_keys_only() -> None:
    text = seeds()["user-data"].decode()
    data = yaml.safe_load(text)
    assert text.startswith("#cloud-config\n")
    assert data["enable_ssh"] is True
    assert data["ssh_pwauth"] is False
    assert data["users"][0]["name"] == "ops"
    assert data["users"][0]["lock_passwd"] is True
    assert any("systemctl enable --now ssh" in " ".join(command) for command in data["runcmd"])
    assert "/usr/local/sbin/shoal-first-boot" in data["runcmd"][-1]


def test_the_instance_is_named_as_cloud_init_reads_it() -> None:
    assert parsed("meta-data") == {
        "instance-id": "pi-1-77",
        "dsmode": "local",
        "local-hostname": "pi-1",
    }


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("settings", [FULL, DeviceSettings(hostname="pi-1")])
def test_the_cable_always_asks_for_an_address(family: Family, settings: DeviceSettings) -> None:
    network = parsed("network-config", settings, family)
    assert isinstance(network, dict)
    eth0 = network["ethernets"]["eth0"]
    assert eth0["dhcp4"] is True
    assert eth0.get("match") == ({"name": "e*"} if family is Family.GENERIC else None)
    assert ("wifis" in network) == (settings.wifi is not None)


def test_neither_passphrase_nor_token_is_in_a_seed() -> None:
    files = [*seeds().values(), first_run_script(FULL, volume_id="1A2B-3C4D")]
    for content in files:
        assert PASSPHRASE.encode() not in content
        assert TOKEN.encode() not in content


def test_what_was_not_asked_for_is_not_in_the_seed() -> None:
    assert parsed("user-data", DeviceSettings(hostname="pi-1")) == {
        "ssh_pwauth": False,
        "hostname": "pi-1",
        "preserve_hostname": False,
        "manage_etc_hosts": True,
    }
    assert json.loads(seeds(DeviceSettings())["meta-data"]) == {
        "instance-id": "pi-1-77",
        "dsmode": "local",
    }


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=80))
def test_a_kernel_command_line_that_is_changed_twice_is_as_if_changed_once(line: str) -> None:
    for change in (
        with_first_run,
        lambda text: with_country(text, "DE"),
        lambda text: with_instance_id(text, "pi-1-77"),
    ):
        once = change(line)
        assert change(once) == once
        assert len(once.splitlines()) <= 1


def test_another_tools_instance_on_the_command_line_is_replaced() -> None:
    line = "console=tty1 ds=nocloud;i=rpi-imager-1;s=/boot rootwait\n"
    assert with_instance_id(line, "x") == "console=tty1 ds=nocloud;i=x;s=/boot rootwait\n"


BOOKWORM = "Raspberry Pi reference 2024-11-19\nGenerated using pi-gen"
FIRST_BOOT = "root=x init=/usr/lib/raspberrypi-sys-mods/firstboot"


@pytest.mark.parametrize(
    ("boot", "seed_format", "words"),
    [
        (BootFiles("bootfs", frozenset({"meta-data", "user-data"}), "pi-gen"), "cloud-init", ""),
        (BootFiles("system-boot", frozenset({"user-data", "meta-data"})), "cloud-init", ""),
        (BootFiles("CIDATA", frozenset()), "cloud-init", "CIDATA"),
        (BootFiles("bootfs", frozenset(), BOOKWORM, FIRST_BOOT), "first-run", "2024-11-19"),
        (BootFiles("bootfs", frozenset(), BOOKWORM, "root=x"), None, "never booted"),
        (
            BootFiles("boot", frozenset(), BOOKWORM.replace("2024", "2022"), FIRST_BOOT),
            None,
            "older than bookworm",
        ),
        (BootFiles("boot", frozenset(), "Raspberry Pi 2024-99-99", ""), None, "doesn't say"),
        (BootFiles("", frozenset({"efi"})), None, "--seed-as cloud-init"),
        (BootFiles("", frozenset({"foo"})), None, "neither"),
    ],
)
def test_what_an_image_supports_is_told_from_its_boot_partition(
    boot: BootFiles, seed_format: str | None, words: str
) -> None:
    support = support_of(boot)
    assert support.format == (SeedFormat(seed_format) if seed_format else None)
    assert words in support.reason


def test_only_an_efi_partition_of_an_unknown_image_is_labelled() -> None:
    efi = BootFiles("", frozenset({"efi"}))
    seeded = BootFiles("CIDATA", frozenset({"efi", "meta-data"}))
    other = BootFiles("bootfs", frozenset({"vmlinuz"}))
    labelled = [asked_for(boot, SeedFormat.CLOUD_INIT).needs_label for boot in (efi, seeded, other)]
    assert labelled == [True, False, False]
    assert not asked_for(efi, SeedFormat.FIRST_RUN).needs_label


def test_the_first_run_script_forgets_itself_whatever_failed() -> None:
    script = first_run_script(FULL, volume_id="1A2B-3C4D").decode()
    assert not re.search(r"^set -e", script, re.MULTILINE) or "SHOAL_FIRST_BOOT" in script
    assert script.rstrip().endswith("exit 0")
    assert "cmdline.txt" in script
