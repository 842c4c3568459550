"""Manifests: one form, one signature, and a directory that holds what they say and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from bundles import CONTENTS, KEY, PUBLIC, manifest_of, write_directory
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from shoal.bundle import (
    MANIFEST_NAME,
    MAX_BUNDLE_BYTES,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    SIGNATURE_NAME,
    SIGNATURE_PREFIX,
    BundleFile,
    Manifest,
    check_files,
    check_path,
    read_manifest,
    sign,
    verify,
)
from shoal.errors import BundleRefused

DIGEST = "0" * 64
SEGMENTS = st.builds(str.__add__, st.sampled_from("aZ09_"), st.text("aZ09_.+!-", max_size=9))
PATHS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)
FILES = st.builds(
    BundleFile,
    path=PATHS.filter(lambda path: path not in {MANIFEST_NAME, SIGNATURE_NAME}),
    size=st.integers(0, 1 << 20),
    sha256=st.binary(min_size=32, max_size=32).map(bytes.hex),
)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(BundleRefused) as caught:
        act()
    assert "\n" not in str(caught.value)
    return caught.value.reason


@given(files=st.lists(FILES, max_size=8, unique_by=lambda file: file.path.split("/")[0]))
def test_a_manifest_is_read_as_it_was_written(files: list[BundleFile]) -> None:
    manifest = replace(manifest_of(), files=tuple(sorted(files, key=lambda file: file.path)))
    content = manifest.encode()
    assert Manifest.parse(content) == manifest
    assert verify(content, sign(manifest, KEY), PUBLIC) == manifest
    assert Manifest.parse(content).digest == manifest.digest


@given(at=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_no_flipped_byte_of_manifest_or_signature_is_accepted(at: int, flip: int) -> None:
    content, signature = manifest_of().encode(), sign(manifest_of(), KEY)
    changed = bytearray(content + signature)
    changed[at % len(changed)] ^= flip
    told, signed = bytes(changed[: len(content)]), bytes(changed[len(content) :])
    assert refused(lambda: verify(told, signed, PUBLIC)) == "signature"


@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_what_is_no_manifest_is_refused_and_never_a_riddle(content: bytes) -> None:
    assert refused(lambda: Manifest.parse(content)) in {"malformed", "schema"}


@given(
    changed=st.dictionaries(
        st.sampled_from([*Manifest.__slots__, "schema", "more"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=5,
        ),
        min_size=1,
    )
)
def test_values_of_any_kind_are_taken_or_refused(changed: dict[str, object]) -> None:
    found = {**json.loads(manifest_of().encode()), **changed}
    content = json.dumps(found, sort_keys=True, separators=(",", ":")).encode()
    with suppress(BundleRefused):  # and nothing else
        assert Manifest.parse(content).encode() == content


def test_a_signature_of_anything_else_by_the_same_key_does_not_count() -> None:
    content = manifest_of().encode()
    assert SIGNATURE_PREFIX == b"shoal bundle v1\n"
    assert refused(lambda: verify(content, KEY.sign(content), PUBLIC)) == "signature"
    foreign = Ed25519PrivateKey.generate()
    assert refused(lambda: verify(content, sign(manifest_of(), foreign), PUBLIC)) == "signature"
    assert refused(lambda: verify(content, b"", PUBLIC)) == "signature"


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b"9" * 10_000,
        json.dumps(json.loads(manifest_of().encode())).encode(),
        manifest_of().encode() + b"\n",
        b'{"schema":1,"schema":1}',
        b"null",
        "{}\ud7ff".encode(),
    ],
)
def test_a_form_that_is_not_the_canonical_one_is_refused(content: bytes) -> None:
    assert refused(lambda: Manifest.parse(content)) in {"malformed", "schema"}


def test_a_newer_schema_says_so_and_unknown_keys_are_ignored() -> None:
    found = json.loads(manifest_of().encode())

    def encoded(**more: object) -> bytes:
        return json.dumps({**found, **more}, sort_keys=True, separators=(",", ":")).encode()

    assert refused(lambda: Manifest.parse(encoded(schema=2))) == "schema"
    newer = Manifest.parse(encoded(zone="reef-2"))
    assert newer == replace(manifest_of(), more={"zone": "reef-2"})
    assert newer.digest == hashlib.sha256(encoded(zone="reef-2")).hexdigest()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "wheels/../../x",
        "wheels//x",
        "wheels/",
        "./x",
        ".hidden",
        "wheels/.x",
        "-rf",
        "a b",
        "a\nb",
        "a\\b",
        "a\0b",
        "ä",
        "C:x",
        "x/" * 6 + "x",
        "x" * 201,
        "manifest.json",
        "manifest.sig",
    ],
)
def test_a_path_that_is_not_plainly_within_the_bundle_is_refused(path: str) -> None:
    assert refused(lambda: check_path(path)) == "path"
    assert refused(lambda: BundleFile(path, 1, DIGEST)) == "path"


def test_sizes_are_bounded_before_anything_is_read() -> None:
    assert refused(lambda: BundleFile("x", MAX_FILE_BYTES + 1, DIGEST)) == "limit"
    assert refused(lambda: BundleFile("x", -1, DIGEST)) == "malformed"
    many = tuple(BundleFile(f"x{n:04}", 1, DIGEST) for n in range(MAX_FILES + 1))
    assert refused(lambda: replace(manifest_of(), files=many)) == "limit"
    large = tuple(BundleFile(f"x{n}", MAX_FILE_BYTES, DIGEST) for n in range(3))
    assert 3 * MAX_FILE_BYTES > MAX_BUNDLE_BYTES
    assert refused(lambda: replace(manifest_of(), files=large)) == "limit"
    assert refused(lambda: Manifest.parse(b" " * (MAX_MANIFEST_BYTES + 1))) == "limit"
    assert refused(lambda: verify(b" " * (MAX_MANIFEST_BYTES + 1), b"", PUBLIC)) == "limit"


def test_files_are_named_once_in_order_and_none_is_a_directory_too() -> None:
    one, two = BundleFile("a", 1, DIGEST), BundleFile("b", 1, DIGEST)
    for files in ((two, one), (one, one)):
        assert refused(partial(replace, manifest_of(), files=files)) == "malformed"
    below = BundleFile("a/b", 1, DIGEST)
    assert refused(lambda: replace(manifest_of(), files=(one, below))) == "path"


@pytest.mark.parametrize(
    "values",
    [
        {"fleet": "Reef"},
        {"arch": "armv6l"},
        {"python": "2.7"},
        {"min_glibc": "2"},
        {"created": "yesterday"},
        {"ca_fingerprint": "ab"},
        {"enrollment": "fleet.example.org"},
        {"version": "../1"},
    ],
)
def test_a_value_that_is_not_valid_is_refused_by_name(values: dict[str, str]) -> None:
    with pytest.raises(BundleRefused, match=next(iter(values))):
        manifest_of(CONTENTS, **values)


# ------------------------------------------------------------------------------ the directory


def test_a_directory_that_holds_what_the_manifest_says_is_accepted(tmp_path: Path) -> None:
    manifest = write_directory(tmp_path)
    assert read_manifest(tmp_path, PUBLIC) == read_manifest(tmp_path, None) == manifest
    check_files(tmp_path, manifest)


@pytest.mark.parametrize("path", sorted(CONTENTS))
def test_a_file_that_is_missing_changed_longer_or_shorter_is_refused(
    path: str, tmp_path: Path
) -> None:
    manifest = write_directory(tmp_path)
    target, content = tmp_path / path, CONTENTS[path]
    forms = [content + b"x", content[:-1]] if content else [b"x"]
    forms += [
        bytes([*content[:at], content[at] ^ 1, *content[at + 1 :]])
        for at in {*range(0, len(content), 13), *range(min(3, len(content)))}
    ]
    for changed in forms:
        target.write_bytes(changed)
        assert refused(lambda: check_files(tmp_path, manifest)) == "digest"
    target.unlink()
    assert refused(lambda: check_files(tmp_path, manifest)) == "files"


def test_anything_that_the_manifest_does_not_name_is_refused(tmp_path: Path) -> None:
    manifest = write_directory(tmp_path)
    outside = tmp_path.with_name("outside")
    outside.write_bytes(CONTENTS["install.sh"])
    wheel = "wheels/empty-1.0-py3-none-any.whl"
    makers: dict[str, Callable[[Path], object]] = {
        "wheels/more.whl": lambda path: path.write_bytes(b""),
        "more": lambda path: path.mkdir(),
        ".hidden": lambda path: path.write_bytes(b""),
        "wheels/pipe": os.mkfifo,
        "link": lambda path: path.symlink_to(outside),
        "install.sh": lambda path: path.symlink_to(outside),
        wheel: lambda path: path.mkdir(),
    }
    for number, (name, make) in enumerate(makers.items()):
        directory = tmp_path / f"{number}"
        write_directory(directory)
        (directory / name).unlink(missing_ok=True)
        make(directory / name)
        assert refused(partial(check_files, directory, manifest)) == "files"


def test_a_directory_of_the_bundle_that_is_a_link_is_refused(tmp_path: Path) -> None:
    manifest = write_directory(tmp_path / "bundle")
    (tmp_path / "bundle/wheels").rename(tmp_path / "elsewhere")
    (tmp_path / "bundle/wheels").symlink_to(tmp_path / "elsewhere")
    assert refused(lambda: check_files(tmp_path / "bundle", manifest)) == "files"


def test_a_manifest_or_signature_on_disk_that_is_not_one_is_refused(tmp_path: Path) -> None:
    write_directory(tmp_path)
    (tmp_path / SIGNATURE_NAME).write_bytes(b"x" * 65)
    assert refused(lambda: read_manifest(tmp_path, PUBLIC)) == "limit"
    (tmp_path / SIGNATURE_NAME).unlink()
    assert refused(lambda: read_manifest(tmp_path, PUBLIC)) == "files"
    with (tmp_path / MANIFEST_NAME).open("wb") as file:
        file.truncate(1 << 40)  # sparse: nothing of that size may be read
    assert refused(lambda: read_manifest(tmp_path, None)) == "limit"
    (tmp_path / MANIFEST_NAME).unlink()
    os.mkfifo(tmp_path / MANIFEST_NAME)
    assert refused(lambda: read_manifest(tmp_path, None)) == "files"


def test_the_canonical_form_and_the_signature_are_the_same_for_ever() -> None:
    manifest = manifest_of()
    assert manifest.digest == "8388687788ffc520e6dc0f85b27d4e8d613d09f4b613de90d46fd5699c06dbe2"
    assert sign(manifest, KEY).hex() == (
        "179cdbf711a632d8a7a693766d6cd68880655de67c5326212467a5ebc4f362f4"
        "24ee674521cb9b8f6d3b60d464a5f980cb244ee5bda7da79eb00e5d557def005"
    )
