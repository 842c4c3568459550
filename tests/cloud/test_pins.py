"""Pinned policy versions: no retention deletes them, and a restart keeps them pinned."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_logs import open_log, publish

from cloud_learner.downlink.pins import Pins
from shoal.errors import ConfigError, PolicyLogError


def kept(directory: Path, pins: Pins, *, updates: range) -> set[int]:
    with open_log(directory, keep=2, pinned=pins.versions) as log:
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


@pytest.mark.parametrize("text", ["seven\n", "7\n-1\n", "0\n", "7 8\n", "\xe9\n"])
def test_a_damaged_file_stops_the_learner_before_anything_is_deleted(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "pins.txt"
    path.write_text(text, "latin-1")
    with pytest.raises(PolicyLogError, match="pinned policies"):
        Pins(path)
