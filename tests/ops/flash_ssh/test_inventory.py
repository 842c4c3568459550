"""Hosts as they are typed and as an inventory lists them; every mistake names its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoalctl.flash.ssh.host import Host, parse_host
from shoalctl.flash.ssh.inventory import (
    MAX_INVENTORY_BYTES,
    parse_inventory,
    read_inventory,
    select,
)

GOOD = """
[bundles]
aarch64 = "arm.tar"

[defaults]
user = "pi"

[[hosts]]
name = "arm-1"
host = "10.0.0.4"
device_id = "arm-1"
labels = { site = "lab", kind = "arm" }

[[hosts]]
host = "root@[fe80::1%eth0]:2222"
name = "leg-1"
bundles = { x86_64 = "/bundles/leg.tar" }
"""


def parse(text: str) -> tuple[Host, ...]:
    return parse_inventory(text, Path("/fleet"), what="fleet.toml")


def test_an_inventory_lists_hosts_with_what_all_share() -> None:
    arm, leg = parse(GOOD)
    assert arm == Host(
        "arm-1",
        "10.0.0.4",
        user="pi",
        device_id="arm-1",
        bundles={"aarch64": Path("/fleet/arm.tar")},
        labels={"site": "lab", "kind": "arm"},
    )
    assert (leg.address, leg.port, leg.user) == ("fe80::1%eth0", 2222, "root")
    assert leg.bundles["x86_64"] == Path("/bundles/leg.tar")
    assert leg.login == "root@[fe80::1%eth0]:2222"


HOST = '[[hosts]]\nname = "a"\nhost = "h"\n'
WRONG = {
    "not TOML": ("hosts = [", "is not TOML"),
    "no hosts": ("[defaults]\n", r"no \[\[hosts\]\]"),
    "an unknown table": (f"{HOST}\n[default]\n", "did you mean defaults"),
    "an unknown key": (f"{HOST}prot = 22\n", "did you mean port"),
    "a host without a place": ('[[hosts]]\nname = "a"\n', "no `host`"),
    "an odd port": (f"{HOST}port = 70000\n", "from 1 to 65535"),
    "a port that is true": (f"{HOST}port = true\n", "from 1 to 65535"),
    "an odd device id": (f'{HOST}device_id = "A b"\n', "device id"),
    "an odd user": (f'{HOST}user = "a b"\n', "no host"),
    "labels that are none": (f"{HOST}labels = 3\n", "must be a table"),
    "two of one name": (f"{HOST}{HOST.replace(chr(34) + 'h', chr(34) + 'g')}", "the name a"),
    "two of one place": (f'{HOST}[[hosts]]\nname = "b"\nhost = "h"\n', "the address h"),
    "a host that is an option": ('[[hosts]]\nname = "a"\nhost = "-oProxyCommand=x"\n', "no host"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG.keys())
def test_a_mistake_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_inventory(tmp_path / "none.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (MAX_INVENTORY_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_inventory(tmp_path / "large.toml")


def test_hosts_are_selected_by_name_pattern_and_label() -> None:
    hosts = parse(GOOD)
    assert [host.name for host in select(hosts, [])] == ["arm-1", "leg-1"]
    assert [host.name for host in select(hosts, ["arm-*"])] == ["arm-1"]
    assert [host.name for host in select(hosts, ["site=la*"])] == ["arm-1"]
    assert [host.name for host in select(hosts, ["leg-1,kind=arm"])] == ["arm-1", "leg-1"]
    with pytest.raises(ConfigError, match="did you mean arm-1"):
        select(hosts, ["arm-2"])


@given(st.text(st.characters(codec="utf-8")))
def test_what_is_typed_is_a_host_that_reads_the_same_or_an_error(text: str) -> None:
    try:
        host = parse_host(text)
    except ConfigError:
        return
    assert parse_host(host.login).login == host.login
    assert not host.address.startswith("-")


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_an_inventory_or_an_error_for_people(text: str) -> None:
    try:
        parse(text)
    except ConfigError as error:
        assert "fleet.toml" in str(error)  # noqa: PT017 - one of two outcomes
