"""The templates of `deploy/edge/cloud-init` are what `shoal flash image` writes.

To write them anew: python tests/ops/flash/test_templates.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shoalctl.flash.edge_files import edge_directory
from shoalctl.flash.seeds.cloud_init import cloud_init_files
from shoalctl.flash.seeds.first_run import first_run_script
from shoalctl.flash.seeds.settings import Bundle, DeviceSettings
from shoalctl.flash.seeds.support import Family
from shoalctl.flash.seeds.wifi import Wifi

PLACE = edge_directory() / "cloud-init"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExam me@example.org"


def templates() -> dict[str, bytes]:
    """The seeds of one device of the documentation's."""
    settings = DeviceSettings(
        hostname="reef-1",
        ssh_keys=(KEY,),
        wifi=Wifi.derive("Example", "example passphrase", "DE"),
        bundle=Bundle(Path("shoal-bundle.tar"), "0" * 64),
        token="one-time-token",
    )
    files = cloud_init_files(
        settings, Family.GENERIC, instance_id="reef-1-unique-to-each-flash", volume_id="1A2B-3C4D"
    )
    return {**files, "firstrun.sh": first_run_script(settings, volume_id="1A2B-3C4D")}


@pytest.mark.parametrize("name", sorted(templates()))
def test_a_template_is_what_is_written(name: str) -> None:
    assert (PLACE / name).read_bytes() == templates()[name]


def test_no_template_holds_a_secret() -> None:
    for content in templates().values():
        assert b"one-time-token" not in content
        assert b"example passphrase" not in content


if __name__ == "__main__":
    PLACE.mkdir(exist_ok=True)
    for name, content in templates().items():
        (PLACE / name).write_bytes(content)
