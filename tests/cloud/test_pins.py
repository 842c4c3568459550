"""Pinned policy versions: no retention deletes them, and a restart keeps them pinned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_logs import open_log, publish

from cloud_learner.downlink.log_directory import bundle_versions
from cloud_learner.downlink.pins import Pins
from shoal.errors import ConfigError, PolicyLogError


def kept(directory: Path, pins: Pins, *, updates: range) -> set[int]:
    with open_log(directory, keep=2, pinned=pins.kept) as log:
        for each in updates:
            publish(log, each)
        return {info.manifest.version for info in log.list()}


def test_a_pinned_version_stays_through_publishing_and_a_restart_until_it_is_unpinned(
    tmp_path: Path,
) -> None:
    pins = Pins(tmp_path / "pins.txt")
    kept(tmp_path / "log", pins, updates=range(2))
    pins.put(frozenset({1}))
    assert kept(tmp_path / "log", pins, updates=range(2, 6)) == {1, 5, 6}
    again = Pins(tmp_path / "pins.txt")
    assert kept(tmp_path / "log", again, updates=range(6, 8)) == {1, 7, 8}
    again.put(frozenset())
    assert kept(tmp_path / "log", again, updates=range(8, 9)) == {8, 9}


@given(versions=st.frozensets(st.integers(1, 2**62 - 1), max_size=8))
def test_what_is_pinned_is_read_back(
    versions: frozenset[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("pins") / "pins.txt"
    Pins(path).put(versions)
    assert Pins(path).versions() == versions


def test_only_so_many_are_pinned(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "pins.txt", max_pins=2)
    pins.put(frozenset({4, 9}))
    with pytest.raises(ConfigError, match="unpin v2"):
        pins.put(frozenset({2, 4, 9}))
    assert Pins(tmp_path / "pins.txt").versions() == {4, 9}


def test_a_disk_that_refuses_leaves_them_as_they_were(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "gone" / "pins.txt")
    with pytest.raises(PolicyLogError, match="No such file"):
        pins.put(frozenset({1}))
    assert pins.versions() == frozenset()


def test_pins_are_taken_away_however_many_there_are(tmp_path: Path) -> None:
    path = tmp_path / "pins.txt"
    Pins(path).put(frozenset({4, 9, 12}))
    fewer = Pins(path, max_pins=1)
    fewer.put(frozenset({4, 9}))
    assert fewer.versions() == {4, 9}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[2:],
        lambda data: data.replace(b"30", b"3"),
        lambda data: data.replace(b"30", b"31"),
        lambda data: b"\xe9" + data[1:],
        lambda data: b"7\n8\n",
        lambda data: data + b"40\n",
        lambda data: b"-1\n" + data,
    ],
)
def test_while_the_file_is_damaged_nothing_is_deleted_until_an_operator_says_what_to_keep(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path, log = tmp_path / "pins.txt", tmp_path / "log"
    kept(log, Pins(path), updates=range(2))
    Pins(path).put(frozenset({1, 2, 30}))
    changed = damage(path.read_bytes())
    path.write_bytes(changed)
    for first in (2, 4):  # a start each
        pins = Pins(path, present=lambda: bundle_versions(log))
        assert "is damaged" in pins.damage
        there = set(bundle_versions(log))
        assert not pins.versions()
        assert pins.kept() == there
        assert kept(log, pins, updates=range(first, first + 2)) >= there
    pins.put(frozenset({2}))
    assert pins.damage == ""
    assert kept(log, pins, updates=range(6, 8)) == {2, 7, 8}
    assert (tmp_path / "pins.txt.damaged").read_bytes() == changed
    assert Pins(path).versions() == {2}


@given(
    versions=st.frozensets(st.integers(1, 200), min_size=1, max_size=8),
    at=st.integers(0, 10_000),
    bit=st.integers(0, 7),
)
def test_a_bit_that_flipped_is_noticed(
    versions: frozenset[int], at: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("pins") / "pins.txt"
    Pins(path).put(versions)
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    assert Pins(path).damage
