"""The script of the first boot, run by a real shell in a root of its own: once, come what may."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoalctl.flash.seeds.first_boot import STATE_DIRECTORY, first_boot_script

TOKEN = b"one-time-token-0815\n"
INSTALLER = """#!/bin/sh
echo "$(cat "$SHOAL_ENROLMENT_TOKEN_FILE")" >> "{log}"
exit {code}
"""


@dataclass(frozen=True, slots=True)
class Device:
    """A directory that stands for a device: its boot partition and its state."""

    root: Path

    @property
    def seed(self) -> Path:
        return self.root / "boot/firmware/shoal"

    @property
    def state(self) -> Path:
        return self.root / STATE_DIRECTORY.lstrip("/")

    @property
    def installs(self) -> list[str]:
        log = self.root / "installs"
        return log.read_text().splitlines() if log.exists() else []

    def boot(self, *, fail_at: str | None = None) -> int:
        """Runs the script; `fail_at` is a program at whose use the power goes."""
        script = first_boot_script("1A2B-3C4D")
        for path in ("/boot/firmware", "/boot/efi", STATE_DIRECTORY, "/run/shoal-boot"):
            script = script.replace(f" {path}", f" {self.root}{path}")
            script = script.replace(f"={path}", f"={self.root}{path}")
        script = script.replace(" /boot ", f" {self.root}/boot ")
        bin_directory = self.root / "bin"
        bin_directory.mkdir(exist_ok=True)
        for program in list(bin_directory.iterdir()):
            program.unlink()
        if fail_at:
            fake = bin_directory / fail_at
            fake.write_text("#!/bin/sh\nkill -9 $PPID\n")
            fake.chmod(0o755)
        environment = {"PATH": f"{bin_directory}:{os.environ['PATH']}"}
        finished = subprocess.run(
            ["sh", "-c", script], check=False, capture_output=True, env=environment
        )
        assert TOKEN.strip() not in finished.stdout + finished.stderr
        return finished.returncode


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return made(tmp_path)


def made(root: Path, *, code: int = 0) -> Device:
    device = Device(root)
    device.seed.mkdir(parents=True)
    (device.seed / "enrolment-token").write_bytes(TOKEN)
    installer = INSTALLER.format(log=root / "installs", code=code).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as bundle:
        entry = tarfile.TarInfo("install.sh")
        entry.size = len(installer)
        bundle.addfile(entry, io.BytesIO(installer))
    (device.seed / "bundle").write_bytes(out.getvalue())
    digest = hashlib.sha256(out.getvalue()).hexdigest()
    (device.seed / "bundle.sha256").write_text(f"{digest}  bundle\n")
    return device


def test_the_first_boot_takes_the_token_off_the_card_and_installs(device: Device) -> None:
    assert device.boot() == 0
    assert list(device.seed.iterdir()) == []
    token = device.state / "enrolment-token"
    assert token.read_bytes() == TOKEN
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert device.installs == [TOKEN.decode().strip()]


def test_the_second_boot_does_nothing(device: Device) -> None:
    assert device.boot() == 0
    (device.state / "enrolment-token").unlink()  # used
    assert device.boot() == 0
    assert len(device.installs) == 1
    assert not (device.state / "enrolment-token").exists()


@pytest.mark.parametrize(
    "program", ["mkdir", "cp", "sync", "mv", "touch", "wc", "dd", "rm", "sha256sum", "tar"]
)
def test_power_that_goes_at_any_step_loses_no_token_and_leaves_none_on_the_card(
    program: str, device: Device
) -> None:
    assert device.boot(fail_at=program) != 0
    assert device.boot() == 0
    assert (device.state / "enrolment-token").read_bytes() == TOKEN
    assert list(device.seed.iterdir()) == []
    assert device.installs == [TOKEN.decode().strip()]


def test_a_damaged_bundle_is_not_installed_and_the_token_is_off_the_card(device: Device) -> None:
    with (device.seed / "bundle").open("r+b") as bundle:
        bundle.write(b"X")
    assert device.boot() == 1
    assert device.installs == []
    assert not (device.seed / "enrolment-token").exists()


def test_an_installer_that_fails_is_tried_again_at_the_next_boot(tmp_path: Path) -> None:
    device = made(tmp_path, code=7)
    assert device.boot() == 7
    assert device.boot() == 7
    assert len(device.installs) == 2


def test_a_card_without_a_bundle_only_gives_its_token(device: Device) -> None:
    (device.seed / "bundle").unlink()
    assert device.boot() == 0
    assert (device.state / "enrolment-token").read_bytes() == TOKEN
    assert device.installs == []


def test_the_card_is_found_by_the_number_of_its_file_system() -> None:
    assert "/dev/disk/by-uuid/1A2B-3C4D" in first_boot_script("1A2B-3C4D")
