"""The small programs that run on a host, run here: whole or not at all, and again at any time."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from shoalctl.flash.ssh.scripts import (
    DAMAGED_STATUS,
    alone_command,
    lease_command,
    prefix_digest_command,
    token_command,
    unpack_command,
)


def sh(command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sh", "-c", command], input=stdin, capture_output=True, check=False)


def archive(path: Path, *entries: tarfile.TarInfo) -> str:
    with tarfile.open(path, "w") as tar:
        for entry in entries:
            tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> object:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = 3 if kind == tarfile.REGTYPE else 0
    return info


def test_a_bundle_is_unpacked_whole_and_others_go(tmp_path: Path) -> None:
    above = tmp_path / "flash"
    (above / "old").mkdir(parents=True)
    path = tmp_path / "b.tar"
    digest = archive(path, entry("install.sh", mode=0o755), entry("wheels/a.whl"))  # type: ignore[arg-type]
    command = unpack_command(str(path), digest, str(above / digest))
    for _ in range(2):
        assert sh(command).returncode == 0
    assert [each.name for each in above.iterdir()] == [digest]
    assert (above / digest / "install.sh").stat().st_mode & 0o777 == 0o755
    assert (above / digest / "wheels" / "a.whl").read_bytes() == b"xxx"


@pytest.mark.parametrize(
    "bad",
    [
        entry("../escaped"),
        entry("/tmp/escaped"),
        entry("a/../../escaped"),
        entry("link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("hard", tarfile.LNKTYPE, "install.sh"),
        entry("device", tarfile.CHRTYPE),
        entry("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: info.name,
)
def test_what_does_not_belong_into_a_bundle_leaves_nothing_behind(
    bad: tarfile.TarInfo, tmp_path: Path
) -> None:
    path = tmp_path / "b.tar"
    digest = archive(path, entry("install.sh"), bad)  # type: ignore[arg-type]
    done = sh(unpack_command(str(path), digest, str(tmp_path / "flash" / digest)))
    assert done.returncode == DAMAGED_STATUS
    assert b"does not belong" in done.stderr
    assert not (tmp_path / "flash" / digest).exists()
    assert not (tmp_path / "escaped").exists()


def test_another_file_than_was_meant_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    archive(path, entry("install.sh"))  # type: ignore[arg-type]
    done = sh(unpack_command(str(path), "0" * 64, str(tmp_path / "flash" / ("0" * 64))))
    assert done.returncode == DAMAGED_STATUS


def test_a_token_is_its_owners_alone_and_goes_through_no_link(tmp_path: Path) -> None:
    path = tmp_path / "state" / "enrolment-token"
    path.parent.mkdir()
    (tmp_path / "elsewhere").write_text("kept")
    path.with_name("enrolment-token.tmp").symlink_to(tmp_path / "elsewhere")
    assert sh(token_command(str(path)), b"id.secret\n").returncode == 0
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("id.secret\n", 0o600)
    assert (tmp_path / "elsewhere").read_text() == "kept"
    assert sh(token_command(str(path))).returncode == DAMAGED_STATUS
    assert path.read_text() == "id.secret\n"


def test_the_directory_of_a_first_token_is_not_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "state" / "enrolment-token"
    assert sh(token_command(str(path)), b"id.secret\n").returncode == 0
    assert path.parent.stat().st_mode & 0o777 == 0o750


def test_the_start_of_a_file_is_known_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"abcdef")
    done = sh(prefix_digest_command(str(tmp_path / "part"), 3))
    assert done.stdout.split() == [b"3", hashlib.sha256(b"abc").hexdigest().encode()]
    assert sh(prefix_digest_command(str(tmp_path / "none"), 3)).returncode != 0


def test_a_lease_ends_with_what_holds_it_and_says_who_that_is(tmp_path: Path) -> None:
    lock = str(tmp_path / "opt" / "flash.lock")
    command = ["sh", "-c", lease_command(lock, "ann@desk")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        busy = sh(lease_command(lock, "bob@desk"))
        assert (busy.returncode, busy.stdout) == (75, b"ann@desk\n")
        holder.communicate()
    again = sh(lease_command(lock, "bob@desk"))
    assert (again.returncode, again.stdout) == (0, b"held\n")


def test_two_commands_that_must_not_meet_do_not(tmp_path: Path) -> None:
    lock, log = str(tmp_path / "work"), tmp_path / "log"
    line = f"sh -c 'echo begin >>{log}; read word; echo end >>{log}'"
    command = ["sh", "-c", alone_command(lock, 60, line)]
    pipes = {"stdin": subprocess.PIPE}
    first = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
    second = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
    for process in (first, second):
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert (first.wait(60), second.wait(60)) == (0, 0)
    assert log.read_text().split() == ["begin", "end"] * 2
