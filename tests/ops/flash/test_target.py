"""The disk that is written is the one that was looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoalctl.flash.image.disks import Disk
from shoalctl.flash.image.target import Target, check_target, check_unchanged

DISK = Disk(Path("/dev/sdb"), "disk", 1000, "8:16", "Ultra", "4C53", "usb", removable=True)
TARGET = Target(DISK.path, DISK, exists=True, size_bytes=1000, limit_bytes=1000)


def now_there_is(disk: Disk | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoalctl.flash.image.target.find_disk", lambda _: disk)


def test_the_same_disk_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    now_there_is(DISK, monkeypatch)
    check_unchanged(TARGET)


@pytest.mark.parametrize(
    "other",
    [
        replace(DISK, serial="9999"),
        replace(DISK, model="Extreme"),
        replace(DISK, size_bytes=1001),
        replace(DISK, number="8:32"),
    ],
)
def test_a_disk_that_was_swapped_after_the_question_is_not_written(
    other: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_there_is(other, monkeypatch)
    with pytest.raises(ConfigError, match="another disk than before"):
        check_unchanged(TARGET)


def test_a_disk_that_was_taken_out_after_the_question_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_there_is(None, monkeypatch)
    with pytest.raises(ConfigError, match="is gone"):
        check_unchanged(TARGET)


def test_every_reason_against_a_disk_is_said() -> None:
    target = replace(TARGET, disk=replace(DISK, read_only=True))
    with pytest.raises(ConfigError, match=r"read-only .*; too small"):
        check_target(target, required_bytes=2000)
