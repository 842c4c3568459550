"""`shoal flash image` that refuses: why, with which exit code, and that nothing was written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from bundles import write_bundle
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flash_command import a_bundle, flash, refused
from flash_images import (
    BOOT_AT,
    MIB,
    TRIXIE,
    boot_text,
    make_image,
    mbr,
    needs_mtools,
)

from shoalctl.flash.image.fat import read_fat_header

pytestmark = [needs_mtools, pytest.mark.usefixtures("own_directory")]


def test_an_unknown_image_is_refused_with_the_reason_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = make_image(tmp_path / "i.img", {"foo.txt": "bar"})
    arguments = ("--image", image, "--to", tmp_path / "card", "--hostname", "pi-1")
    refused(capsys, 1, "can't be told its settings: its boot partition has neither", *arguments)
    assert not (tmp_path / "card").exists()
    assert flash(*arguments, "--seed-as", "cloud-init") == 0
    assert flash("--image", image, "--to", tmp_path / "plain") == 0


def test_a_cloud_image_is_seeded_in_its_efi_partition_when_it_is_said_to_have_cloud_init(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = make_image(tmp_path / "i.img", {"efi": ""}, table="gpt", label="ESP")
    arguments = ("--image", image, "--to", tmp_path / "card", "--hostname", "pi-1")
    refused(capsys, 1, "--seed-as cloud-init", *arguments)
    assert flash(*arguments, "--seed-as", "cloud-init") == 0
    sector = (tmp_path / "card").read_bytes()[BOOT_AT : BOOT_AT + 512]
    header = read_fat_header(sector)
    assert header is not None
    assert header.label == "CIDATA"
    assert "pi-1" in boot_text(tmp_path / "card", "user-data")
    assert flash("--image", tmp_path / "card", "--to", "again", "--hostname", "pi-2") == 0


def test_an_image_without_fat_partition_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = make_image(tmp_path / "i.img", boot_type=0x83)
    refused(capsys, 1, "no FAT partition", "--image", image, "--to", "card", "--hostname", "pi-1")


def test_what_is_no_image_of_a_disk_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.img").write_text("hello" * 1000)
    refused(capsys, 1, "no partition table", "--image", "notes.img", "--to", "card")


def test_an_image_that_was_cut_short_never_becomes_bootable(
    trixie: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.img").write_bytes(trixie.read_bytes()[: 7 * MIB])
    refused(capsys, 1, "cut short", "--image", "short.img", "--to", "card", "--hostname", "a")
    assert (tmp_path / "card").read_bytes()[:512] == bytes(512)


@pytest.mark.parametrize("option", ["--sha256", "--image-sha256"])
def test_an_image_with_another_digest_never_becomes_bootable(
    option: str, trixie: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, 1, "was expected", "--image", trixie, "--to", "card", option, "0" * 64)
    card = tmp_path / "card"
    assert not card.exists() or card.read_bytes()[:512] == bytes(512)


def test_a_boot_partition_that_is_full_is_refused_before_the_card_is_touched(
    trixie: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = a_bundle(tmp_path, {"wheels/large.whl": bytes(4 * MIB)})
    refused(
        capsys, 1, "are free; take an image", "--image", trixie, "--to", "card", "--bundle", bundle
    )
    assert not (tmp_path / "card").exists()


def test_a_bundle_that_is_not_the_fleets_or_was_changed_is_refused_before_the_card_is_touched(
    trixie: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = a_bundle(tmp_path)
    common = ("--image", trixie, "--to", "card", "--bundle", bundle)
    for at in (600, 1800, 3000, bundle.read_bytes().rindex(b"acting")):
        content = bytearray(bundle.read_bytes())
        content[at] ^= 1
        bundle.write_bytes(content)
        assert flash(*common) == 1
    write_bundle(bundle, key=Ed25519PrivateKey.generate())
    refused(capsys, 1, "not signed by this fleet", *common)
    refused(capsys, 2, "--fleet", *common, "--fleet", "elsewhere")
    bundle.write_bytes(b"PK")
    refused(capsys, 1, "cut off", *common)
    assert not (tmp_path / "card").exists()


def test_a_bundle_for_another_processor_than_the_images_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = a_bundle(tmp_path)
    for name, files, words in (
        ("32.img", {"kernel7.img": "", "kernel8.img": ""}, "64-bit image"),
        ("pc.img", {"vmlinuz-6.12.0-amd64": ""}, "--arch x86_64"),
    ):
        image = make_image(tmp_path / name, {**TRIXIE, **files})
        refused(capsys, 1, words, "--image", image, "--to", "card", "--bundle", bundle)
    assert not (tmp_path / "card").exists()
    image = make_image(tmp_path / "64.img", {**TRIXIE, "kernel8.img": ""})
    assert flash("--image", image, "--to", "card", "--bundle", bundle) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hostname", "Pi_1"), "hostname 'Pi_1'"),
        (("--wifi-ssid", "net"), "needs --wifi-country"),
        (("--wifi-country", "DE"), "need --wifi-ssid"),
        (("--wifi-ssid", "net", "--wifi-country", "DE"), "needs --wifi-passphrase-file"),
        (("--ssh-key", "missing.pub"), "missing.pub: No such file"),
        (("--bundle", "missing"), "shoal flash bundle"),
        (("--token", "a", "--token-file", "b"), "not both"),
        (("--sha256", "abc"), "64 hexadecimal"),
        (("--seed-as", "magic"), "cloud-init or first-run"),
        (("--size", "big"), "write it like"),
        (("--resume",), "no interrupted flash"),
        (("--nonsense",), "No such option"),
    ],
)
def test_bad_arguments_are_explained_with_exit_code_4(
    arguments: Sequence[str],
    words: str,
    trixie: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused(capsys, 4, words, "--image", trixie, "--to", tmp_path / "card", *arguments)
    assert not (tmp_path / "card").exists()


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("/dev/sdzz", "no such disk"),
        ("/dev/null", "neither a disk nor a file"),
        (".", "neither a disk nor a file"),
        ("nowhere/card", "no directory"),
    ],
)
def test_what_is_no_target_is_refused(
    to: str, words: str, trixie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, 4, words, "--image", trixie, "--to", to)


def test_an_image_is_never_written_over_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "i.img").write_bytes(mbr([(0x83, MIB, MIB)]) + bytes(2 * MIB))
    refused(capsys, 4, "the same file", "--image", "i.img", "--to", "i.img", "--yes")
