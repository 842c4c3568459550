"""`install.sh`, run by a real shell: what it refuses, with what words, and what it hands on to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from bundles import manifest_of, write_bundle, write_directory

from shoal.bundle import MANIFEST_NAME, Manifest
from shoalctl.flash.bundle.parts import Parts
from shoalctl.flash.bundle.target import Target
from shoalctl.flash.edge_files import edge_directory
from shoalctl.flash.seeds.first_boot import STATE_DIRECTORY, first_boot_script

ARCH = os.uname().machine
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
HERE = Target(ARCH, PYTHON, "2.17")
LAUNCHER = b"""\
import json, os, sys
with open(os.environ["INSTALL_LOG"], "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
sys.exit(int(os.environ.get("INSTALL_CODE", "0")))
"""


def contents(target: Target = HERE, needed_bytes: int = 1) -> Mapping[str, bytes]:
    """A bundle whose launcher notes how it is called."""
    installer = (edge_directory() / "install.sh").read_text()
    parts = Parts({"__main__.py": LAUNCHER}, {"shoal-agent.service": b""}, installer)
    return {**parts.files(target, needed_bytes), "wheels/x-1.0-py3-none-any.whl": b"x" * 1000}


@dataclass(frozen=True, slots=True)
class Said:
    """How an installation went."""

    code: int
    out: str
    err: str


class Box:
    """A bundle in a directory, and programs before those of the system."""

    def __init__(self, root: Path) -> None:
        self.bundle, self.prefix, self.log = root / "bundle", root / "opt", root / "log"
        self.programs = root / "bin"
        self.programs.mkdir()
        python = self.programs / f"python{PYTHON}"
        python.symlink_to(sys.executable)

    def make(self, target: Target = HERE, needed_bytes: int = 1) -> Manifest:
        return write_directory(self.bundle, contents(target, needed_bytes), arch=target.arch)

    def fake(self, name: str, script: str) -> None:
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def install(self, *arguments: str, code: int = 0) -> Said:
        environment = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "INSTALL_LOG": str(self.log),
            "INSTALL_CODE": str(code),
        }
        done = subprocess.run(
            ["sh", self.bundle / "install.sh", *(arguments or ("--prefix", str(self.prefix)))],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def refused(self, words: str, *arguments: str, code: int = 4) -> None:
        said = self.install(*arguments)
        assert (said.code, words in said.err) == (code, True), said
        assert not self.log.exists()
        assert not self.prefix.exists()


@pytest.fixture
def box(tmp_path: Path) -> Box:
    made = Box(tmp_path)
    made.make()
    return made


def test_a_device_that_fits_is_handed_to_the_launcher_with_all_options(box: Box) -> None:
    said = box.install("--prefix", str(box.prefix), "--no-user", "--reason", "two words")
    assert said.code == 0, said
    assert json.loads(box.log.read_text()) == [
        "setup",
        str(box.bundle),
        *("--prefix", str(box.prefix), "--no-user", "--reason", "two words"),
    ]


def test_a_dry_run_says_what_it_found_and_changes_nothing(box: Box) -> None:
    said = box.install("--dry-run", f"--prefix={box.prefix}")
    assert said.code == 0
    assert "fits" in said.out
    assert not box.log.exists()


def test_the_launchers_exit_code_is_that_of_the_installer(box: Box) -> None:
    assert box.install(code=7).code == 7
    assert box.install().code == 0


def test_another_processor_is_refused(box: Box) -> None:
    box.fake("uname", "echo riscv64")
    box.refused("this device is riscv64, the bundle is for")


@pytest.mark.parametrize(
    ("name", "known"), [("arm64", "aarch64"), ("amd64", "x86_64"), ("aarch64", "aarch64")]
)
def test_other_names_of_a_processor_are_understood(name: str, known: str, tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.make(Target(known, PYTHON, "2.17"))
    box.fake("uname", f"echo {name}")
    assert box.install().code == 0


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ('[ "$1" = LONG_BIT ] && echo 32 || echo "glibc 2.36"', "32-bit"),
        ('[ "$1" = LONG_BIT ] && echo 64 || exit 1', "no GNU C library"),
        ('[ "$1" = LONG_BIT ] && echo 64 || echo "glibc 2.13"', "glibc 2.13 is here"),
        ("exit 1", "no GNU C library"),
    ],
)
def test_another_system_is_refused(answers: str, words: str, box: Box) -> None:
    box.fake("getconf", answers)
    box.refused(words)


@pytest.mark.parametrize("libc", ["glibc 2.17", "glibc 2.36", "glibc 2.36.9000"])
def test_a_c_library_as_old_or_newer_is_taken(libc: str, box: Box) -> None:
    box.fake("getconf", f'[ "$1" = LONG_BIT ] && echo 64 || echo "{libc}"')
    assert box.install().code == 0


def test_another_python_is_refused_with_the_one_to_make_a_bundle_for(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.make(Target(ARCH, "3.5", "2.17"))
    box.fake("python3", "echo 3.9")
    box.refused("Python 3.9 is here, the bundle is for 3.5: make one with --python 3.9")


def test_a_python_without_its_library_is_refused(box: Box) -> None:
    (box.programs / f"python{PYTHON}").unlink()
    box.fake(f"python{PYTHON}", f'case "$2" in *version_info*) echo {PYTHON} ;; *) exit 1 ;; esac')
    box.refused("lacks parts of its standard library")


def test_a_full_disk_is_refused_with_how_much_it_takes(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.make(needed_bytes=300_000_000)
    box.fake("df", "echo head; echo '/dev/x 1000 1 150000 1% /'")
    box.refused("153 MB free, the installation takes 300 MB")


def test_a_bundle_that_is_installed_already_needs_no_room(tmp_path: Path) -> None:
    box = Box(tmp_path)
    manifest = box.make(needed_bytes=300_000_000)
    box.fake("df", "echo head; echo '/dev/x 1000 1 150000 1% /'")
    slot = box.prefix / "slots/b"
    slot.mkdir(parents=True)
    (slot / MANIFEST_NAME).write_bytes(manifest.encode())
    assert box.install().code == 0
    (slot / MANIFEST_NAME).write_bytes(manifest_of(version="2").encode())
    assert box.install().code == 4


@pytest.mark.parametrize(
    "path", ["boot/__main__.py", "wheels/x-1.0-py3-none-any.whl", "units/shoal-agent.service"]
)
def test_a_bundle_with_a_changed_or_missing_file_or_a_link_is_refused(path: str, box: Box) -> None:
    target = box.bundle / path
    content = target.read_bytes()
    target.write_bytes(content + b"x")
    box.refused(f"{path} is damaged", code=1)
    target.unlink()
    box.refused("the bundle is damaged", code=1)
    target.symlink_to("/etc/hostname")
    box.refused("not a plain file", code=1)


def test_a_manifest_that_is_none_is_refused(box: Box) -> None:
    (box.bundle / MANIFEST_NAME).write_bytes(b"{}")
    box.refused("the bundle is damaged", code=1)
    (box.bundle / MANIFEST_NAME).unlink()
    box.refused("the bundle is damaged", code=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may install under the system's prefix")
def test_the_systems_prefix_is_roots(box: Box) -> None:
    box.refused("run it as root", "--no-user")


def test_a_prefix_without_a_directory_is_refused(box: Box) -> None:
    box.refused("--prefix needs a directory", "--prefix")


def test_the_installer_is_plain_posix_shell() -> None:
    path = edge_directory() / "install.sh"
    subprocess.run(["dash", "-n", path], check=True)


@pytest.mark.skipif(
    shutil.which("shellcheck") is None,
    reason="shellcheck is not installed (apt-get install shellcheck)",
)
def test_shellcheck_has_nothing_to_say() -> None:
    for script in ((edge_directory() / "install.sh").read_text(), first_boot_script("1A2B-3C4D")):
        command = ["shellcheck", "-s", "sh", "-"]
        done = subprocess.run(command, check=False, input=script, text=True, capture_output=True)
        assert done.stdout == ""


# -------------------------------------------------------------------- from a card, at first boot


def test_the_first_boot_installs_the_bundle_of_the_card_and_keeps_the_token_for_the_agent(
    tmp_path: Path,
) -> None:
    box = Box(tmp_path)
    seed, state = tmp_path / "boot/firmware/shoal", tmp_path / STATE_DIRECTORY.lstrip("/")
    seed.mkdir(parents=True)
    write_bundle(seed / "bundle", contents(), arch=ARCH)
    subprocess.run("sha256sum bundle > bundle.sha256", shell=True, cwd=seed, check=True)  # noqa: S602 as it is typed
    (seed / "enrolment-token").write_text("one-time-token-0815\n")
    script = first_boot_script("1A2B-3C4D")
    for path in ("/boot/firmware", "/boot/efi", STATE_DIRECTORY, "/run/shoal-boot"):
        script = script.replace(f" {path}", f" {tmp_path}{path}")
        script = script.replace(f"={path}", f"={tmp_path}{path}")
    script = script.replace(" /boot ", f" {tmp_path}/boot ")
    script = script.replace('install.sh"', f'install.sh" --prefix "{box.prefix}"')
    environment = {"PATH": f"{box.programs}:/usr/bin:/bin", "INSTALL_LOG": str(box.log)}
    for _ in range(2):  # the second boot does nothing
        done = subprocess.run(
            ["sh", "-c", script], check=False, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert "one-time-token" not in done.stdout + done.stderr
    assert box.log.read_text().count("setup") == 1
    assert list(seed.iterdir()) == []
    assert (state / "enrolment-token").read_text() == "one-time-token-0815\n"
    assert not (state / "bundle").exists(), "what was installed takes no room twice"
