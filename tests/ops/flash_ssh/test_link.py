"""Links that break, disks that fill, damage on the way: the same command goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import PUBLIC
from ssh_hosts import SshHost, fake_bundle, flash, items, needs_sshd

from shoalctl.flash.ssh.offline_bundle import OfflineBundle

pytestmark = needs_sshd
MIB = 1 << 20


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return fake_bundle(tmp_path / "one.tar", size=6 * MIB)


def part(host: SshHost, bundle: Path) -> Path:
    return host.staging / f"{OfflineBundle.open(bundle, PUBLIC).sha256}.part"


def test_a_link_that_drops_in_the_middle_of_the_upload_is_made_again(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.cut_link_after(3 * MIB, 2 * MIB)
    assert flash(host, bundle, "-o", "json") == 0
    (item,) = items(capsys.readouterr().out)
    assert item["reconnects"] == 2
    assert item["outcome"] == "committed"
    # What had arrived was not sent again.
    assert item["sent_bytes"] <= bundle.stat().st_size


def test_without_retries_the_same_command_goes_on_where_it_was(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.cut_link_after(4 * MIB)
    assert flash(host, bundle, "--retries", "0", "-o", "json") == 2
    (item,) = items(capsys.readouterr().out)
    assert (item["outcome"], item["step"]) == ("failed", "upload")
    arrived = part(host, bundle).stat().st_size
    assert arrived > MIB
    assert flash(host, bundle, "-o", "json") == 0
    (item,) = items(capsys.readouterr().out)
    assert item["resumed_bytes"] == arrived
    assert item["sent_bytes"] == bundle.stat().st_size - arrived


def test_a_link_that_never_holds_is_given_up(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.cut_link_after(*([10_000] * 4))
    assert flash(host, bundle, "--retries", "1", "-o", "json") == 2
    (item,) = items(capsys.readouterr().out)
    assert item["outcome"] == "failed"
    assert host.connections == 2


def test_what_lies_there_and_is_not_the_bundle_is_not_gone_on_from(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = part(host, bundle)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(3 * MIB))
    assert flash(host, bundle, "-o", "json") == 0
    (item,) = items(capsys.readouterr().out)
    assert (item["resumed_bytes"], item["sent_bytes"]) == (0, bundle.stat().st_size)


def test_what_lies_there_and_is_longer_than_the_bundle_is_cut_to_it(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = part(host, bundle)
    path.parent.mkdir(parents=True)
    path.write_bytes(bundle.read_bytes() + b"more")
    assert flash(host, bundle, "-o", "json") == 1
    (item,) = items(capsys.readouterr().out)
    assert "was removed" in item["reason"]
    assert flash(host, bundle) == 0


def test_an_upload_that_was_damaged_since_is_not_unpacked(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = bytearray(bundle.read_bytes())
    damaged[4 * MIB] ^= 1
    path = part(host, bundle).with_suffix(".tar")
    path.parent.mkdir(parents=True)
    path.write_bytes(damaged)
    assert flash(host, bundle, "-o", "json") == 1
    (item,) = items(capsys.readouterr().out)
    assert "is damaged" in item["reason"]
    assert not (host.prefix / "slots.json").exists()
    assert flash(host, bundle) == 0


@pytest.fixture
def small_disk(host: SshHost) -> Iterator[Path]:
    """A disk of 4 MiB where the bundle is uploaded to."""
    disk = host.root / "small"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can't be mounted here: it takes root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_too_small_is_refused_before_anything_is_sent(
    host: SshHost, bundle: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(host, bundle, "--staging", small_disk, "-o", "json") == 1
    (item,) = items(capsys.readouterr().out)
    assert item["refusals"] == ["disk"]
    assert "--allow disk" in item["reason"]
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_fills_up_is_said_with_what_is_left_of_it(
    host: SshHost, bundle: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--staging", small_disk, "--allow", "disk", "-o", "json")
    assert flash(host, bundle, *options) == 1
    (item,) = items(capsys.readouterr().out)
    assert (item["outcome"], item["step"]) == ("failed", "upload")
    assert "can't write" in item["reason"]
    assert "tmpfs" in item["reason"]
    assert not host.prefix.joinpath("slots.json").exists()
    remount = ["mount", "-o", "remount,size=64m", str(small_disk)]
    subprocess.run(remount, check=True)
    assert flash(host, bundle, *options) == 0
    (item,) = items(capsys.readouterr().out)
    assert item["resumed_bytes"] > MIB
