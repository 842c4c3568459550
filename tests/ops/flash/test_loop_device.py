"""Real block devices: loop devices, where the tests run as root on Linux. Skipped loudly elsewhere.

What only the kernel can say is asked here: `O_EXCL`, mounts, a device that is too small, read-only,
and what `lsblk` knows of all that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from flash_faults import Event, FaultyIo, flash
from flash_images import IMAGE_BYTES, MIB, TRIXIE, boot_text, make_image, needs_mtools

from shoal.errors import ConfigError, FlashFailed
from shoalctl.flash.image.disks import find_disk
from shoalctl.flash.image.stages import Stage
from shoalctl.flash.image.verdict import Reason, refusals


def attach(file: Path, *options: str) -> str:
    command = ["losetup", "--find", "--show", *options, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def detach(device: str) -> None:
    subprocess.run(["losetup", "--detach", device], check=True)


def _loop_devices_work(directory: Path) -> bool:
    file = directory / "probe"
    file.write_bytes(bytes(MIB))
    try:
        detach(attach(file))
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@pytest.fixture(scope="module")
def _loop_devices(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0 or not _loop_devices_work(tmp_path_factory.mktemp("probe")):
        pytest.skip("!!! no loop devices (they need root): real block devices are NOT tested")


pytestmark = [needs_mtools, pytest.mark.usefixtures("_loop_devices")]

CARD_BYTES = 24 * MIB


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("image") / "card.img", TRIXIE, table="gpt")


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "card"
    file.write_bytes(os.urandom(CARD_BYTES))
    device = attach(file)
    yield Path(device)
    detach(device)


def mount(device: Path, at: Path) -> None:
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "ext4", str(device), str(at)], check=True, capture_output=True)


def flash_card(
    image: Path, card: Path, io: FaultyIo | None = None, *, resume: bool = False
) -> None:
    flash(image, card, io, yes=True, expect_size=str(CARD_BYTES), resume=resume)


def test_a_disk_is_written_verified_and_its_old_end_erased(image: Path, card: Path) -> None:
    flash_card(image, card)
    assert '"instance-id": "pi-1-' in boot_text(card, "meta-data")
    with card.open("rb") as device:
        assert device.read(512)[510:] == b"\x55\xaa"
        device.seek(CARD_BYTES - MIB)
        assert device.read() == bytes(MIB)


def test_a_disk_keeps_everybody_out_while_it_is_written(
    image: Path, card: Path, tmp_path: Path
) -> None:
    tried: list[Stage] = []

    def hook(event: Event) -> None:
        if event.kind == "begin" and event.stage in {Stage.WRITE, Stage.VERIFY, Stage.COMMIT}:
            with pytest.raises(OSError, match="busy"):
                os.open(card, os.O_RDWR | os.O_EXCL)
            with pytest.raises(subprocess.CalledProcessError) as caught:
                mount(card, tmp_path / "there")
            assert b"already mounted" in caught.value.stderr
            tried.append(event.stage)

    flash_card(image, card, FaultyIo(hook))
    assert tried == [Stage.WRITE, Stage.VERIFY, Stage.COMMIT]


def test_a_disk_that_becomes_mounted_before_it_is_opened_is_not_written(
    image: Path, card: Path, tmp_path: Path
) -> None:
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", str(card)], check=True, capture_output=True)
    point = tmp_path / "there"

    def hook(event: Event) -> None:
        if event.kind == "open" and event.stage is Stage.PREPARE:
            mount(card, point)

    try:
        with pytest.raises(FlashFailed, match=r"in use .*mounted just now"):
            flash_card(image, card, FaultyIo(hook))
        (point / "alive").write_text("yes")
    finally:
        subprocess.run(["umount", str(point)], check=False)


def test_a_mounted_disk_is_refused_with_its_mount_point(
    image: Path, card: Path, tmp_path: Path
) -> None:
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", str(card)], check=True, capture_output=True)
    point = tmp_path / "there"
    mount(card, point)
    try:
        with pytest.raises(ConfigError, match=f"mounted .*{point}.*umount {card}"):
            flash_card(image, card)
    finally:
        subprocess.run(["umount", str(point)], check=False)


def test_a_disk_that_is_read_only_is_refused(image: Path, tmp_path: Path) -> None:
    file = tmp_path / "locked"
    file.write_bytes(bytes(CARD_BYTES))
    device = attach(file, "--read-only")
    try:
        with pytest.raises(ConfigError, match="read-only"):
            flash_card(image, Path(device))
    finally:
        detach(device)


def test_a_disk_that_is_too_small_is_refused_and_keeps_what_it_has(
    image: Path, tmp_path: Path
) -> None:
    file = tmp_path / "small"
    before = os.urandom(IMAGE_BYTES - MIB)
    file.write_bytes(before)
    device = attach(file)
    try:
        with pytest.raises(ConfigError, match=r"too small \(it has 8\.4 MB"):
            flash(image, Path(device), yes=True, expect_size=str(len(before)))
    finally:
        detach(device)
    untouched = file.read_bytes() == before
    assert untouched


def test_an_interrupted_disk_is_resumed_from_its_journal(image: Path, card: Path) -> None:
    def hook(event: Event) -> None:
        if event == Event(Stage.SEEDS, "begin", 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="NOT BOOTABLE"):
        flash_card(image, card, FaultyIo(hook))
    with card.open("rb") as device:
        assert device.read(MIB) == bytes(MIB)
    io = FaultyIo()
    flash_card(image, card, io, resume=True)
    assert Event(Stage.WRITE, "write", 0) not in io.events
    with card.open("rb") as device:
        assert device.read(512)[510:] == b"\x55\xaa"


def test_a_file_that_is_a_disk_already_is_refused(image: Path, card: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"in use .*{card}"):
        flash(image, tmp_path / "card", yes=True, expect_size=str(CARD_BYTES))


def test_a_partition_is_refused(image: Path, tmp_path: Path) -> None:
    file = tmp_path / "parted"
    file.write_bytes(image.read_bytes())
    device = attach(file, "--partscan")
    try:
        part = find_disk(Path(f"{device}p1"))
        if part is None:
            pytest.skip("!!! this kernel makes no partitions of loop devices")
        assert Reason.PARTITION in {refusal.reason for refusal in refusals(part)}
    finally:
        detach(device)
