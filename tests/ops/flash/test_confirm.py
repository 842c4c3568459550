"""Nothing that exists is overwritten unless a person, or a script that names it, means it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoalctl.flash.image.confirm import check_consent, check_expectations, parse_size, size_matches
from shoalctl.flash.image.disks import Disk
from shoalctl.flash.image.target import Target
from shoalctl.output import size

CARD_BYTES = 31_914_983_424
DISK = Disk(Path("/dev/sdb"), "disk", CARD_BYTES, "8:16", model="Ultra", serial="4C53")
TARGET = Target(DISK.path, DISK, exists=True, size_bytes=CARD_BYTES, limit_bytes=CARD_BYTES)
NEW_FILE = Target(Path("card.img"), None, exists=False, size_bytes=None, limit_bytes=CARD_BYTES)


@pytest.mark.parametrize(
    "text", ["31914983424", "31.9GB", "32GB", "32 gb", "29.7GiB", "31914.98MB"]
)
def test_a_size_matches_to_the_digits_that_were_written(text: str) -> None:
    assert size_matches(text, CARD_BYTES)


@pytest.mark.parametrize("text", ["31914983425", "31.8GB", "31GB", "64GB", "0.03TB "])
def test_another_size_does_not_match(text: str) -> None:
    assert size_matches(text, CARD_BYTES) == (text == "0.03TB ")


@given(st.integers(1, 10**13))
def test_what_the_list_shows_always_matches(size_bytes: int) -> None:
    assert size_matches(str(size_bytes), size_bytes)
    assert size_matches(size(size_bytes), size_bytes)


@pytest.mark.parametrize("text", ["", "big", "-1", "1.5.2GB", "12 parsecs", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write it like"):
        parse_size(text)


def test_sizes_are_read() -> None:
    assert [parse_size(text) for text in ("512", "4GB", "1.5 MiB")] == [512, 4 * 10**9, 1_572_864]


def test_the_wrong_serial_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"4C53, and 9999 was expected: nothing was written"):
        check_expectations(TARGET, expect_serial="9999", expect_size=None)
    check_expectations(TARGET, expect_serial="4C53", expect_size="32GB")


def test_the_wrong_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"31\.9 GB.*64GB was"):
        check_expectations(TARGET, expect_serial=None, expect_size="64GB")


def test_yes_alone_is_not_enough() -> None:
    with pytest.raises(ConfigError, match="--expect-serial or --expect-size"):
        check_consent(TARGET, yes=True, expected=False, interactive=True)


def test_nobody_is_asked_without_a_terminal() -> None:
    with pytest.raises(ConfigError, match="no terminal"):
        check_consent(TARGET, yes=False, expected=True, interactive=False)


def test_a_person_is_asked_and_a_script_that_names_the_disk_is_not() -> None:
    assert check_consent(TARGET, yes=False, expected=False, interactive=True)
    assert not check_consent(TARGET, yes=True, expected=True, interactive=False)
    assert not check_consent(NEW_FILE, yes=False, expected=False, interactive=False)


def test_a_disk_is_described_by_model_size_and_serial() -> None:
    assert TARGET.description == "/dev/sdb: Ultra, 31.9 GB, serial 4C53"
