from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.downlink import version_index
from cloud_learner.downlink.version_index import VersionIndex


def test_updates_are_known_after_a_restart(tmp_path: Path) -> None:
    index = VersionIndex.load(tmp_path / "updates.log")
    index.append(1, 16)
    index.append(2, 32)
    again = VersionIndex.load(tmp_path / "updates.log")
    assert (again.updates_of(1), again.updates_of(2), again.updates_of(3)) == (16, 32, None)
    assert again.highest == 2


def test_the_newest_word_about_a_version_holds(tmp_path: Path) -> None:
    index = VersionIndex.load(tmp_path / "updates.log")
    index.append(1, 16)
    index.append(1, 20)
    assert index.updates_of(1) == 20
    assert VersionIndex.load(tmp_path / "updates.log").updates_of(1) == 20


def test_old_versions_leave_so_that_memory_and_file_stay_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_index, "MAX_INDEXED_VERSIONS", 4)
    path = tmp_path / "updates.log"
    index = VersionIndex.load(path)
    for version in range(1, 12):
        index.append(version, version * 16)
    assert [index.updates_of(version) for version in (7, 8, 11)] == [None, 128, 176]
    again = VersionIndex.load(path)
    assert [again.updates_of(version) for version in (7, 8, 11)] == [None, 128, 176]
    assert path.read_text().count("\n") == 4


@given(cut=st.integers(0, 40), more=st.integers(0, 10**9))
def test_a_torn_line_is_never_read_as_another_number(cut: int, more: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "updates.log"
        index = VersionIndex.load(path)
        wanted = {1: 16, 2: 3200, 10: 64_000_000, 11: 64_000_001}
        for version, updates in wanted.items():
            index.append(version, updates)
        path.write_bytes(path.read_bytes()[:-cut] if cut else path.read_bytes())
        again = VersionIndex.load(path)
        again.append(12, more)
        last = VersionIndex.load(path)
        assert last.updates_of(12) == more
        for version, updates in wanted.items():
            assert last.updates_of(version) in {updates, None}


@given(garbage=st.binary(max_size=200))
def test_garbage_is_skipped(garbage: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "updates.log"
        path.write_bytes(garbage)
        VersionIndex.load(path).append(5, 80)
        assert VersionIndex.load(path).updates_of(5) == 80
