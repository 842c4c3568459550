from __future__ import annotations

import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.durable_file import remove_leftovers, write_durably


@contextmanager
def files_limited_to(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_written_file_holds_the_content_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"one")
    write_durably(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_refused_write_keeps_the_old_content_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")
    with files_limited_to(1000), pytest.raises(OSError, match="too large"):
        write_durably(path, bytes(5000))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_temporary_files_are_leftovers(tmp_path: Path) -> None:
    (tmp_path / "file.tmp").write_bytes(b"half")
    (tmp_path / "file").write_bytes(b"whole")
    assert remove_leftovers(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
