"""Disks as `lsblk` tells of them, and why each is refused: on what real machines have shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import FlashFailed
from shoalctl.flash.image.disks import Disk, parse_disks
from shoalctl.flash.image.verdict import Reason, refusals, sentence
from shoalctl.flash.image.views import disk_list

GB = 10**9
CARD_TYPES = {"mmcblk0": "SD", "mmcblk1": "MMC"}


def device(name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    plain = {
        "name": name,
        "path": f"/dev/{name}",
        "type": "disk",
        "size": 32 * GB,
        "maj:min": "8:16",
        "ro": False,
        "rm": False,
        "hotplug": False,
        "tran": None,
        "mountpoints": [None],
    }
    return plain | {key.replace("maj_min", "maj:min"): value for key, value in fields.items()}


def one(name: str, **fields: Any) -> Disk:  # noqa: ANN401 - JSON
    (disk,) = parse_disks(json.dumps({"blockdevices": [device(name, **fields)]}), CARD_TYPES)
    return disk


def reasons(disk: Disk, *, required_bytes: int = 0) -> set[Reason]:
    return {refusal.reason for refusal in refusals(disk, required_bytes=required_bytes)}


CARD = {"tran": "usb", "rm": True, "model": "SD/MMC  ", "vendor": "Generic-", "serial": "0815"}
NVME = {"tran": "nvme", "model": "Samsung SSD 980", "serial": "S64D"}


def test_a_card_in_a_reader_is_written() -> None:
    disk = one("sdb", **CARD)
    assert refusals(disk) == ()
    assert (disk.model, disk.serial, disk.size_bytes) == ("Generic- SD/MMC", "0815", 32 * GB)


def test_a_card_in_a_slot_is_written() -> None:
    assert refusals(one("mmcblk0")) == ()


def test_flash_memory_that_is_soldered_in_is_no_card() -> None:
    assert reasons(one("mmcblk1")) == {Reason.INTERNAL}


def test_an_nvme_in_a_usb_case_is_written() -> None:
    assert refusals(one("sdc", tran="usb", model="RTL9210 NVME")) == ()


def test_an_nvme_that_is_built_in_is_refused_unless_it_is_asked_for() -> None:
    disk = one("nvme1n1", **NVME)
    assert reasons(disk) == {Reason.INTERNAL}
    assert "--allow-internal" in sentence(refusals(disk))
    assert refusals(disk, allow_internal=True) == ()


@pytest.mark.parametrize("point", ["/", "/boot", "/boot/efi", "/usr", "/var"])
def test_the_disk_that_the_machine_runs_from_is_refused_even_when_asked_for(point: str) -> None:
    part = device("sdb2", type="part", mountpoints=[point])
    disk = one("sdb", **CARD, children=[part])
    assert {refusal.reason for refusal in refusals(disk, allow_internal=True)} == {Reason.SYSTEM}
    assert point in sentence(refusals(disk))


def test_a_root_on_lvm_on_luks_is_found_below() -> None:
    root = device("vg-root", path="/dev/mapper/vg-root", type="lvm", mountpoints=["/"])
    crypt = device("luks", path="/dev/mapper/luks", type="crypt", children=[root])
    part = device("nvme0n1p3", type="part", fstype="crypto_LUKS", children=[crypt])
    disk = one("nvme0n1", **NVME, children=[part])
    assert reasons(disk) == {Reason.SYSTEM, Reason.IN_USE}
    assert "lvm vg-root" in sentence(refusals(disk))


def test_a_mounted_card_is_refused_with_every_mount_point_and_what_to_do() -> None:
    parts = [
        device("sdb1", type="part", mountpoints=["/media/bootfs"]),
        device("sdb2", type="part", mountpoints=["/media/rootfs", "/mnt"]),
    ]
    disk = one("sdb", **CARD, children=parts)
    assert reasons(disk) == {Reason.MOUNTED}
    assert sentence(refusals(disk)) == (
        "mounted (at /media/bootfs, /media/rootfs, /mnt: umount /dev/sdb1 /dev/sdb2)"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mountpoints": ["[SWAP]"]}, "[SWAP]"),
        ({"children": [device("md0", type="raid1")]}, "raid1 md0"),
        ({"children": [device("x", type="crypt")]}, "crypt x"),
        ({"fstype": "LVM2_member"}, "LVM2_member"),
        ({"fstype": "linux_raid_member"}, "linux_raid_member"),
        ({"fstype": "zfs_member"}, "zfs_member"),
    ],
)
def test_a_part_that_is_in_use_otherwise_is_refused(fields: dict[str, Any], words: str) -> None:
    part = device("sdb1", type="part", **fields)
    disk = one("sdb", **CARD, children=[part])
    assert reasons(disk) == {Reason.IN_USE}
    assert words in sentence(refusals(disk))


@pytest.mark.parametrize(
    ("disk", "reason"),
    [
        (one("sdb", **CARD, ro=True), Reason.READ_ONLY),
        (one("sdb", **CARD | {"size": 0}), Reason.NO_MEDIUM),
        (one("sdb1", type="part", **CARD), Reason.PARTITION),
        (one("mmcblk0boot0"), Reason.PARTITION),
        (one("sr0", type="rom", rm=True), Reason.NO_DISK),
        (one("zram0", **CARD), Reason.NO_DISK),
        (one("md127", type="raid1"), Reason.NO_DISK),
        (one("dm-0", type="lvm"), Reason.NO_DISK),
    ],
)
def test_each_kind_is_refused_with_its_reason(disk: Disk, reason: Reason) -> None:
    assert reason in reasons(disk)


def test_a_disk_that_is_too_small_says_by_how_much() -> None:
    disk = one("sdb", **CARD | {"size": 2 * GB})
    assert reasons(disk, required_bytes=2 * GB) == set()
    assert reasons(disk, required_bytes=2 * GB + 1) == {Reason.TOO_SMALL}
    found = refusals(disk, required_bytes=3 * GB)
    assert "it has 2.0 GB, and the image needs 3.0 GB" in sentence(found)


def test_an_older_lsblk_with_one_mount_point_is_understood() -> None:
    fields = device("sdb", **CARD, mountpoint="/media/card")
    del fields["mountpoints"]
    (disk,) = parse_disks(json.dumps({"blockdevices": [fields]}), CARD_TYPES)
    assert reasons(disk) == {Reason.MOUNTED}


@pytest.mark.parametrize("text", ["", "[]", "{}", "lsblk: error", '{"blockdevices": 3}'])
def test_what_is_not_understood_is_said(text: str) -> None:
    with pytest.raises(FlashFailed, match="lsblk"):
        parse_disks(text, CARD_TYPES)


@given(
    point=st.one_of(st.none(), st.sampled_from(["/", "/x", "[SWAP]"])),
    read_only=st.booleans(),
    size=st.integers(0, 64 * GB),
    removable=st.booleans(),
    kind=st.sampled_from(["disk", "part", "loop", "rom", "lvm", "raid1"]),
)
def test_only_a_free_whole_writable_disk_is_ever_accepted(
    *, point: str | None, read_only: bool, size: int, removable: bool, kind: str
) -> None:
    disk = one("sdz", type=kind, mountpoints=[point], ro=read_only, size=size, rm=removable)
    accepted = not refusals(disk, required_bytes=GB)
    free = point is None and not read_only and size >= GB
    assert accepted == (free and (kind == "loop" or (kind == "disk" and removable)))


def test_the_list_shows_refused_disks_with_their_reasons() -> None:
    listing = disk_list([one("sdb", **CARD), one("nvme0n1", **NVME)])
    assert listing.schema == "shoal.v1.DiskList"
    assert [item["writable"] for item in listing.items] == [True, False]
    assert listing.items[0]["verdict"] == "ok"
    assert "internal" in str(listing.items[1]["verdict"])
    assert Path(str(listing.items[0]["name"])) == Path("/dev/sdb")
