"""`shoal flash` as it is typed: what it says, what it never says, and its exit codes."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from bundles import CONTENTS, PUBLIC, write_bundle
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flash_faults import Event, FaultyIo
from flash_images import (
    BOOKWORM,
    BOOT_AT,
    MIB,
    TRIXIE,
    boot_text,
    make_image,
    mbr,
    needs_mtools,
)

from shoalctl.cli import run
from shoalctl.flash.image.fat import read_fat_header
from shoalctl.flash.image.stages import Stage

PASSPHRASE, TOKEN = "correct horse battery", "one-time-token-0815"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINczLgp/3TjOAnQ5iGsj8396quk+5Zb1yql+QdkDLXWk me@home"

pytestmark = needs_mtools


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture(scope="module")
def trixie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("trixie") / "raspios.img", TRIXIE)


def flash(*arguments: str | Path) -> int:
    return run(["flash", "image", *(str(argument) for argument in arguments)])


def a_bundle(directory: Path, contents: Mapping[str, bytes] = CONTENTS) -> Path:
    """A bundle of the fleet in `directory/fleet`, which is where it is looked for."""
    (directory / "fleet").mkdir(exist_ok=True)
    (directory / "fleet/policy.pub").write_text(f"{PUBLIC.hex()}\n")
    write_bundle(directory / "wheels.tar", contents)
    return directory / "wheels.tar"


def everything(directory: Path) -> list[str | Path]:
    """The options of a device that is told all there is."""
    (directory / "pass").write_text(f"{PASSPHRASE}\n")
    (directory / "token").write_text(f"{TOKEN}\n")
    (directory / "key.pub").write_text(f"{KEY}\n")
    a_bundle(directory, {**CONTENTS, "wheels/noise.whl": os.urandom(300_000)})
    return [
        *("--hostname", "pi-1", "--user", "ops", "--ssh-key", directory / "key.pub"),
        *("--wifi-ssid", "Fisch", "--wifi-country", "DE"),
        *("--wifi-passphrase-file", directory / "pass"),
        *("--bundle", directory / "wheels.tar", "--token-file", directory / "token"),
    ]


def test_a_file_is_flashed_and_reported_in_one_envelope_without_secrets(
    trixie: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "raspios.img.xz"
    packed.write_bytes(lzma.compress(trixie.read_bytes(), preset=0))
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    packed.with_name("raspios.img.xz.sha256").write_text(f"{digest}  raspios.img.xz\n")
    card = tmp_path / "card"
    assert flash("--image", packed, "--to", card, *everything(tmp_path), "-o", "json") == 0
    said = capsys.readouterr()
    envelope = json.loads(said.out)
    (item,) = envelope["items"]
    assert envelope["schema"] == "shoal.v1.FlashReport"
    assert item["verified"]
    assert item["sha256_compared"]
    assert item["image_sha256"] == hashlib.sha256(trixie.read_bytes()).hexdigest()
    assert item["seeded_as"] == "cloud-init"
    assert item["instance_id"] in boot_text(card, "meta-data")
    assert "Reading back" in said.err
    key = hashlib.pbkdf2_hmac("sha1", PASSPHRASE.encode(), b"Fisch", 4096, 32).hex()
    for secret in (PASSPHRASE, TOKEN, key):
        assert secret not in said.out + said.err
    assert PASSPHRASE.encode() not in card.read_bytes()
    assert boot_text(card, "shoal/enrolment-token") == f"{TOKEN}\n"
    user_data = yaml.safe_load(boot_text(card, "user-data"))
    assert user_data["users"][0]["ssh_authorized_keys"] == [KEY]
    bundle = (tmp_path / "wheels.tar").read_bytes()
    assert boot_text(card, "shoal/bundle.sha256").split()[0] == hashlib.sha256(bundle).hexdigest()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("shoal-flash")] == []


def test_everything_outside_the_boot_partition_is_the_image(trixie: Path, tmp_path: Path) -> None:
    assert flash("--image", trixie, "--to", tmp_path / "card", *everything(tmp_path)) == 0
    image, card = trixie.read_bytes(), (tmp_path / "card").read_bytes()
    same = image[:BOOT_AT] == card[:BOOT_AT] and image[4 * MIB :] == card[4 * MIB :]
    assert same


def test_two_cards_are_two_instances(
    trixie: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        assert flash("--image", trixie, "--to", tmp_path / name, "--hostname", "pi-1") == 0
    first, second = (yaml.safe_load(boot_text(tmp_path / name, "meta-data")) for name in "ab")
    assert first["instance-id"] != second["instance-id"]


def test_an_image_that_was_seeded_before_is_seeded_anew_and_keeps_nothing_of_before(
    trixie: Path, tmp_path: Path
) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert flash("--image", trixie, "--to", once, *everything(tmp_path)) == 0
    assert flash("--image", once, "--to", twice, "--hostname", "pi-2") == 0
    assert "pi-2" in boot_text(twice, "user-data")
    with pytest.raises(subprocess.CalledProcessError):
        boot_text(twice, "shoal/enrolment-token")


def test_a_bookworm_is_seeded_with_its_first_run_script_also_twice(tmp_path: Path) -> None:
    image = make_image(tmp_path / "bookworm.img", BOOKWORM)
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert flash("--image", image, "--to", once, *everything(tmp_path)) == 0
    assert flash("--image", once, "--to", twice, *everything(tmp_path)) == 0
    line = boot_text(twice, "cmdline.txt")
    assert line.count("systemd.run=/boot/firmware/firstrun.sh") == 1
    assert line.count("cfg80211.ieee80211_regdom=DE") == 1
    assert "enable_ssh -k" in boot_text(twice, "firstrun.sh")


@pytest.mark.parametrize("fat", [16, 32])
@pytest.mark.parametrize("table", ["mbr", "gpt"])
def test_every_table_and_file_system_is_seeded(fat: int, table: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "i.img", TRIXIE, table=table, fat=fat)
    assert flash("--image", image, "--to", tmp_path / "card", "--hostname", "pi-1") == 0
    assert '"instance-id": "pi-1-' in boot_text(tmp_path / "card", "meta-data")
    fsck = shutil.which("fsck.vfat", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if fsck:
        size = (40 if fat == 32 else 3) * MIB
        (tmp_path / "fat").write_bytes((tmp_path / "card").read_bytes()[BOOT_AT:][:size])
        checked = subprocess.run([fsck, "-n", tmp_path / "fat"], check=False, capture_output=True)
        assert checked.returncode == 0, checked.stdout


def refused(
    capsys: pytest.CaptureFixture[str], code: int, words: str, *arguments: str | Path
) -> None:
    assert flash(*arguments) == code
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


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
    refused(capsys, 1, "partition is full", "--image", trixie, "--to", "card", "--bundle", bundle)
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


def test_a_dry_run_checks_everything_and_writes_nothing(
    trixie: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--image", trixie, "--to", "card", "--hostname", "pi-1", "--dry-run")
    assert flash(*arguments, "-o", "json") == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["dry_run"]
    assert item["seeded_as"] == "cloud-init"
    assert [path.name for path in tmp_path.iterdir()] == []


def test_the_list_is_one_envelope(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("lsblk") is None:
        pytest.skip("!!! lsblk is not installed")
    assert run(["flash", "list", "-o", "json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "shoal.v1.DiskList"
    assert all(item["writable"] == (item["verdict"] == "ok") for item in envelope["items"])


@pytest.mark.parametrize("command", [("list",), ("image",)])
def test_flash_loads_neither_torch_nor_the_learner(command: tuple[str, ...]) -> None:
    probe = (
        "import sys; from shoalctl.cli import run; run(sys.argv[1:]);"
        "import shoalctl.flash.image.command, shoalctl.flash.image.views;"
        "print(*sorted({'torch','onnx','onnxruntime','grpc','paho','cloud_learner','edge_agent'}"
        " & set(sys.modules)), sep=',')"
    )
    arguments = ["flash", *command, "--help"]
    finished = subprocess.run(
        [sys.executable, "-c", probe, *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    assert finished.stdout.splitlines()[-1] == ""


def test_ctrl_c_is_exit_code_130_and_says_in_which_state_the_card_is(
    trixie: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def press(event: Event) -> None:
        if event.kind == "write" and event.nth == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("shoalctl.flash.image.command.OsBlockIo", lambda: FaultyIo(press))
    refused(capsys, 130, "NOT BOOTABLE", "--image", trixie, "--to", "card", "--hostname", "a")
    assert (tmp_path / "card").read_bytes()[:512] == bytes(512)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert flash("--image", trixie, "--to", "card", "--hostname", "a", "--resume") == 0
    assert (tmp_path / "card").read_bytes()[510:512] == b"\x55\xaa"


def at_a_terminal(answer: str, *arguments: str | Path) -> tuple[int, str]:
    """The exit code of `shoal flash image` with a person who types, and what that person sees."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "shoalctl.cli", "flash", "image", *arguments],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    seen, typed = b"", False
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        seen += part
        if not typed and b"Type its name" in seen and seen.rstrip().endswith(b":"):
            os.write(ours, f"{answer}\n".encode())
            typed = True
    os.close(ours)
    return child.wait(30), seen.decode()


def test_a_person_types_the_name_of_what_is_overwritten(trixie: Path, tmp_path: Path) -> None:
    card = tmp_path / "card"
    card.write_bytes(b"precious")
    code, seen = at_a_terminal("nope", "--image", trixie, "--to", card)
    assert (code, card.read_bytes()) == (4, b"precious")
    assert "nothing was written" in " ".join(seen.split())
    code, seen = at_a_terminal("card", "--image", trixie, "--to", card, "--hostname", "pi-1")
    assert code == 0, seen
    assert "will be lost" in seen
    assert "Reading back" in seen
    assert "pi-1" in boot_text(card, "user-data")


def test_the_stages_are_named_in_their_order_on_stderr(
    trixie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash("--image", trixie, "--to", "card") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(" ")]
    assert len(lines) == len(Stage)
