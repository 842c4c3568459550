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
from pathlib import Path

import pytest
import yaml
from bundles import CONTENTS
from flash_command import a_bundle, flash, refused
from flash_faults import Event, FaultyIo
from flash_images import (
    BOOKWORM,
    BOOT_AT,
    MIB,
    TRIXIE,
    boot_text,
    make_image,
    needs_mtools,
)

from shoalctl.cli import run
from shoalctl.flash.image.stages import Stage

PASSPHRASE, TOKEN = "correct horse battery", "one-time-token-0815"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINczLgp/3TjOAnQ5iGsj8396quk+5Zb1yql+QdkDLXWk me@home"

pytestmark = [needs_mtools, pytest.mark.usefixtures("own_directory")]


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
