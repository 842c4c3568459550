"""Bundles as one file: read exactly as written, and unpacked whole or not at all."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import CONTENTS, KEY, PUBLIC, manifest_of, write_bundle
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.bundle import MANIFEST_NAME, SIGNATURE_NAME, check_files, read_manifest, sign
from shoal.bundle_archive import MAX_ARCHIVE_BYTES, check_archive, unpack
from shoal.errors import BundleRefused

LONG = f"wheels/{'x' * 120}-1.0-py3-none-any.whl"
Change = Callable[[list[tuple[tarfile.TarInfo, bytes]]], object]


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(BundleRefused) as caught:
        act()
    return caught.value.reason


def refused_both_ways(path: Path) -> str:
    """The reason; nothing is left of the attempt to unpack."""
    where = path.with_name("unpacked")
    reason = refused(lambda: check_archive(path, PUBLIC))
    assert refused(lambda: unpack(path, where, PUBLIC)) == reason
    assert not where.exists()
    assert [each for each in path.parent.iterdir() if "unpack" in each.name] == []
    return reason


def rewritten(path: Path, change: Change) -> Path:
    """The same tar, changed by whoever knows tar but not the key."""
    with tarfile.open(path) as archive:
        entries = [(entry, archive.extractfile(entry).read()) for entry in archive]  # type: ignore[union-attr]
    change(entries)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content) if entry.isreg() else None)
    return path


def entry(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, len(content)
    return made, content


def test_a_bundle_is_unpacked_as_it_was_packed(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path / "bundle.tar")
    assert check_archive(tmp_path / "bundle.tar", PUBLIC) == manifest
    assert unpack(tmp_path / "bundle.tar", tmp_path / "there", PUBLIC) == manifest
    assert read_manifest(tmp_path / "there", PUBLIC) == manifest
    check_files(tmp_path / "there", manifest)
    assert {path: (tmp_path / "there" / path).read_bytes() for path in CONTENTS} == CONTENTS
    executable = {
        str(path.relative_to(tmp_path / "there"))
        for path in (tmp_path / "there").rglob("*")
        if path.is_file() and path.stat().st_mode & stat.S_IXUSR
    }
    assert executable == {"install.sh"}


def test_the_same_contents_make_the_same_bytes(tmp_path: Path) -> None:
    write_bundle(tmp_path / "one.tar")
    write_bundle(tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    contents=st.dictionaries(
        st.sampled_from(["a", "b/c", "install.sh", LONG, "z/y/x/w"]), st.binary(max_size=2000)
    )
)
def test_contents_of_any_size_survive(contents: dict[str, bytes], tmp_path: Path) -> None:
    path, where = tmp_path / "bundle.tar", tmp_path / os.urandom(8).hex()
    manifest = write_bundle(path, contents)
    assert unpack(path, where, PUBLIC) == manifest
    assert {name: (where / name).read_bytes() for name in contents} == contents


def test_tar_reads_the_same_files(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle.tar", {**CONTENTS, LONG: b"wheel"})
    (tmp_path / "there").mkdir()
    subprocess.run(["tar", "-xf", "bundle.tar", "-C", "there"], cwd=tmp_path, check=True)
    check_files(tmp_path / "there", read_manifest(tmp_path / "there", PUBLIC))
    assert (tmp_path / "there/install.sh").stat().st_mode & stat.S_IXUSR


def test_no_flipped_bit_changes_what_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    manifest = write_bundle(path, {"a": b"xyz", LONG: b""})
    original = path.read_bytes()
    used = len(original.rstrip(b"\0"))
    padding = 0
    for at in (*range(0, used, 5), *range(used, len(original), 97)):
        changed = bytearray(original)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            # A bit of a header that says nothing we use: what is unpacked is the same.
            assert check_archive(path, PUBLIC) == manifest
            padding += 1
        except BundleRefused:
            pass
    assert padding < len(original) // 100


@pytest.mark.parametrize("cut", [0, 1, 511, 512, 513, 2000])
def test_a_bundle_that_is_cut_off_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    write_bundle(path)
    path.write_bytes(path.read_bytes()[:cut])
    assert refused_both_ways(path) == "files"


CHANGES: dict[str, Change] = {
    "an added file": lambda entries: entries.append(entry("wheels/zz.whl", b"x")),
    "a file twice": lambda entries: entries.append(entries[-1]),
    "a missing file": lambda entries: entries.pop(),
    "a missing file in the middle": lambda entries: entries.pop(4),
    "another order": lambda entries: entries.append(entries.pop(3)),
    "a symbolic link": lambda entries: entries.insert(
        2, entry("config", kind=tarfile.SYMTYPE, link="/etc")
    ),
    "a hard link": lambda entries: entries.append(
        entry("zz", kind=tarfile.LNKTYPE, link="install.sh")
    ),
    "a device": lambda entries: entries.append(entry("zz", kind=tarfile.CHRTYPE)),
    "a pipe": lambda entries: entries.append(entry("zz", kind=tarfile.FIFOTYPE)),
    "a directory": lambda entries: entries.append(entry("zz", kind=tarfile.DIRTYPE)),
    "a file that became a link": lambda entries: entries.__setitem__(
        2, entry(entries[2][0].name, kind=tarfile.SYMTYPE, link="/etc/passwd")
    ),
    "a way out": lambda entries: entries.append(entry("../out", b"x")),
    "a way out in place of a file": lambda entries: entries.__setitem__(
        -1, entry("../out", entries[-1][1])
    ),
    "an absolute path": lambda entries: entries.append(entry("/tmp/out", b"x")),
    "another content": lambda entries: entries.__setitem__(
        -1, entry(entries[-1][0].name, entries[-1][1][::-1])
    ),
    "a larger content": lambda entries: entries.__setitem__(
        -1, entry(entries[-1][0].name, bytes(10_000_000))
    ),
    "no signature": lambda entries: entries.pop(1),
    "no manifest": lambda entries: entries.pop(0),
    "a signature that is too long": lambda entries: entries.__setitem__(
        1, entry(SIGNATURE_NAME, bytes(65))
    ),
    "another manifest": lambda entries: entries.__setitem__(
        0, entry(MANIFEST_NAME, manifest_of(version="9").encode())
    ),
    "a path without end": lambda entries: entries.__setitem__(2, entry("x/" * 200_000 + "x")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_tampered_bundle_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    write_bundle(path)
    reason = refused_both_ways(rewritten(path, CHANGES[name]))
    assert reason in {"files", "digest", "signature", "malformed", "limit"}
    assert not (tmp_path.parent / "out").exists()


def test_another_fleets_bundle_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    write_bundle(path, key=Ed25519PrivateKey.generate())
    assert refused_both_ways(path) == "signature"
    assert check_archive(path, None) == manifest_of()


def test_a_file_that_says_it_is_huge_is_refused_by_its_size_alone(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    write_bundle(path)
    with path.open("r+b") as file:
        file.truncate(MAX_ARCHIVE_BYTES + 1)  # sparse
    assert refused_both_ways(path) == "limit"


@pytest.mark.parametrize(
    "stated", [b"77777777777\0", b"\x80" + bytes(10) + b"\x01", b"-0000000001\0"]
)
def test_a_header_with_an_absurd_size_allocates_nothing(stated: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    write_bundle(path)
    block = bytearray(path.read_bytes())
    block[124:136] = stated
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    path.write_bytes(block)
    assert refused_both_ways(path) in {"limit", "malformed"}


@pytest.mark.parametrize("content", [b"", b"PK\3\4" + bytes(2000), os.urandom(5000), bytes(10240)])
def test_what_is_no_bundle_is_refused_in_words(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    path.write_bytes(content)
    assert refused_both_ways(path) in {"files", "malformed"}
    assert refused(lambda: check_archive(tmp_path / "none.tar", PUBLIC)) == "files"


def test_a_directory_that_exists_is_not_touched(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle.tar")
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        unpack(tmp_path / "bundle.tar", tmp_path / "there", PUBLIC)
    assert list((tmp_path / "there").iterdir()) == []


def test_what_an_interrupted_unpacking_left_is_swept_by_the_next(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle.tar")
    left = tmp_path / ".there.unpacking/wheels"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x")
    unpack(tmp_path / "bundle.tar", tmp_path / "there", PUBLIC)
    check_files(tmp_path / "there", manifest_of())
    assert not left.exists()


def test_signing_is_the_same_every_time() -> None:
    assert sign(manifest_of(), KEY) == sign(manifest_of(), KEY)
